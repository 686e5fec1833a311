"""Which runsc, and how it is called."""

import asyncio
import os
import re
import shutil
from pathlib import Path
from typing import Literal

import msgspec

from excise.errors import SubstrateError
from excise.handles import finish
from excise.storage.home import cache_dir

Platform = Literal["systrap", "ptrace", "kvm"]
PLATFORMS: tuple[Platform, ...] = ("systrap", "ptrace")
"""In the order they are tried. KVM only if it is asked for: where it exists and does not work, it hangs."""
BUILD = "run `python -m cluster runsc` in Excise's repository, which takes Go and some minutes"
REMEDY = f"{BUILD}, or `apt-get install runsc`"
_SAYING_S = 20.0


class Runsc(msgspec.Struct, frozen=True):
    """A runsc and the platform by which it takes system calls."""

    path: Path
    platform: Platform
    version: str
    flags: frozenset[str]
    """Those it knows, by which an older one is told from a newer one."""

    @property
    def sizes(self) -> bool:
        """What a sandbox writes can be given a size."""
        return "overlay2" in self.flags

    @property
    def tars(self) -> bool:
        """What a sandbox wrote can be had as a tar, and be begun with."""
        return "allow-rootfs-tar-annotation" in self.flags

    @property
    def counts(self) -> bool:
        """gVisor's own control groups hold a sandbox to so many processes."""
        return "in-sandbox-cgroup" in self.flags

    def argv(self, state: Path, *words: str, log: Path | None = None, network: str = "none") -> tuple[str, ...]:
        """The command line of one of its verbs; `state` is where it keeps what it knows of the sandbox."""
        told = () if log is None else (f"--log={log}",)
        return (str(self.path), f"--root={state}", f"--platform={self.platform}", f"--network={network}", *told, *words)


def find(named: str | None) -> Path:
    """The program: the one that was named, else on PATH, else the newest that was built into the cache."""
    if named is not None:
        if not os.access(named, os.X_OK) or Path(named).is_dir():
            raise SubstrateError(f"runsc={named} is no program that can be run: name one, or leave the option out; {REMEDY}")
        return Path(named).absolute()
    if (on_path := shutil.which("runsc")) is not None:
        return Path(on_path)
    built = [path for path in cache_dir().glob("runsc/v*/runsc") if os.access(path, os.X_OK)]
    if not built:
        raise SubstrateError(f"runsc is neither on PATH nor in the cache: {REMEDY}")
    return max(built, key=lambda path: path.parent.name)


async def known(path: Path, platform: Platform) -> Runsc:
    """What it says of itself; SubstrateError if it does not run."""
    words = (await _said(path, "--version")).split()
    if words[:2] != ["runsc", "version"]:
        raise SubstrateError(f"{path} is not gVisor's runsc ({' '.join(words)[:200]}): {REMEDY}")
    flags = re.findall(r"^\s+-([a-z0-9-]+)", await _said(path, "flags"), re.MULTILINE)
    return Runsc(path, platform, words[2] if len(words) > 2 else "unknown", frozenset(flags))


async def _said(path: Path, word: str) -> str:
    try:
        process = await asyncio.create_subprocess_exec(
            str(path), word, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
    except OSError as error:
        raise SubstrateError(f"{path} does not start ({error.strerror}): {REMEDY}") from None
    try:
        async with asyncio.timeout(_SAYING_S):
            said, _ = await process.communicate()
    except BaseException as error:
        process.kill()
        await finish(process.wait())
        if isinstance(error, TimeoutError):
            raise SubstrateError(f"`{path} {word}` did not end in {_SAYING_S:g} s: {REMEDY}") from None
        raise
    return said.decode("utf-8", "replace")
