"""Root file systems of Debian packages: mmdebstrap run for a recipe, and what it says put into one sentence."""

import asyncio
import hashlib
import os
import platform
import shutil
import signal
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from excise.errors import SpecError, SubstrateError
from excise.storage.apt_sources import sources
from excise.storage.background import Stop, in_thread, to_end
from excise.storage.store import PATH, Image, Record, find, make
from excise.storage.unpack import unpack

SUITE = "bookworm"
EPOCH = 1735689600
"""2025-01-01: no file is younger, so that two builds of the same packages are the same bytes."""
_LEFT_OUT = ("/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/doc/*")
_GRACE_S = 20.0
"""How long mmdebstrap may take to unmount and clean up once it is told to end."""
_CAP_SYS_ADMIN = 1 << 21


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """What decides an image's content."""

    name: str
    packages: tuple[str, ...]
    hooks: tuple[str, ...]
    """Shell, run at the end with the root as $1."""
    env: Mapping[str, str]
    workdir: str

    @property
    def key(self) -> str:
        """The recipe's digest: whatever is in it makes another image."""
        recipe = "\0".join((*self.arguments(), platform.machine(), str(EPOCH), repr(sorted(self.env.items())), self.workdir))
        return f"{self.name.rpartition('/')[2]}-{hashlib.sha256(recipe.encode()).hexdigest()}"

    def arguments(self) -> list[str]:
        """What mmdebstrap is asked for, wherever it comes from and goes to."""
        options = [f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT]
        options.append("--dpkgopt=path-include=/usr/share/doc/*/copyright")
        hooks = [f"--customize-hook={hook}" for hook in self.hooks]
        # The last hook cleans apt's files; mmdebstrap's own way leaves a directory whose owner depends on who builds.
        return [
            "--variant=minbase",
            "--format=tar",
            "--skip=cleanup/apt",
            f"--include={','.join(self.packages)}",
            *options,
            *hooks,
            SUITE,
        ]


def built(recipe: Recipe) -> Image:
    """The recipe's image, or how to build it."""
    image = find(recipe.key)
    if image is None:
        raise SpecError(f"image {recipe.name} is not built on this machine yet; run: excise image build {recipe.name}")
    return image


async def build(recipe: Recipe, progress: Callable[[str], None]) -> Image:
    """Build the image, unless it is there; it takes a minute or two and Debian's packages from the network."""

    async def fill(making: Path) -> Record:
        mmdebstrap = shutil.which("mmdebstrap")
        if mmdebstrap is None:
            raise SpecError(f"building {recipe.name} takes mmdebstrap, which is not installed; run: apt-get install mmdebstrap")
        await _bootstrap(recipe, mmdebstrap, making, progress)
        progress("unpacking")
        return await in_thread(lambda stop: _unpack(recipe, making, stop))

    return await make(recipe.key, fill)


def _unpack(recipe: Recipe, making: Path, stop: Stop) -> Record:
    tar = making / "root.tar"
    (making / "root").mkdir()
    size_bytes = unpack(tar, making / "root", stop, named=recipe.name)
    with tar.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Record(name=recipe.name, digest=f"sha256:{digest}", env=recipe.env, workdir=recipe.workdir, size_bytes=size_bytes)


async def _bootstrap(recipe: Recipe, mmdebstrap: str, making: Path, progress: Callable[[str], None]) -> None:
    scratch = making / "scratch"
    scratch.mkdir()
    mirrors: list[str] = []
    for name, text in sources(SUITE).items():
        (scratch / name).write_text(text)
        mirrors.append(str(scratch / name))
    argv = [mmdebstrap, f"--mode={_mode()}", *recipe.arguments(), str(making / "root.tar"), *mirrors]
    code, said = await run_logged(argv, _environment(scratch), progress)
    if code != 0:
        raise _failure(recipe.name, said)
    await in_thread(lambda _: shutil.rmtree(scratch))


def _mode() -> str:
    """`unshare` mounts in a namespace of its own, so that nothing stays mounted however it ends; a container's root may not."""
    if os.geteuid() != 0:
        return "unshare"
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return "unshare" if int(fields["CapEff"], 16) & _CAP_SYS_ADMIN else "root"


def _environment(scratch: Path) -> dict[str, str]:
    env = {"PATH": f"{PATH}:{os.environ.get('PATH', '')}", "LC_ALL": "C.UTF-8", "SOURCE_DATE_EPOCH": str(EPOCH)}
    passed = ("HOME", "http_proxy", "https_proxy", "no_proxy", "TMPDIR")
    env |= {name: os.environ[name] for name in passed if name in os.environ}
    if os.geteuid() == 0:
        # Beside the result, where there is room for it. The sub-uids of an ordinary user cannot reach into the cache.
        env["TMPDIR"] = str(scratch)
    return env


def _failure(name: str, said: list[str]) -> SpecError | SubstrateError:
    errors = [line for line in said if line.startswith(("E:", "W: Failed", "Err:"))] or said
    tail = " ".join(" ".join(errors[-4:]).split())[-600:]
    if any("No space left on device" in line for line in said):
        return SubstrateError(
            f"the disk is full, so {name} was not built: free some space, or set EXCISE_HOME to a larger disk"
        )
    if os.geteuid() != 0 and any(word in tail for word in ("newuidmap", "subuid", "unshare", "user namespace")):
        return SpecError(f"{name} needs user namespaces and `apt-get install uidmap`, or root, to be built; mmdebstrap: {tail}")
    return SubstrateError(f"{name} was not built, nothing of it is left; is the network there? mmdebstrap: {tail}")


async def run_logged(argv: list[str], env: Mapping[str, str], progress: Callable[[str], None]) -> tuple[int, list[str]]:
    """Run a program in a process group of its own, hand on each line it says, and return its exit code and last lines.

    A cancelled caller ends the group, which gets the time to clean up after itself.
    """
    process = await asyncio.create_subprocess_exec(
        *argv,
        env=env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    said: deque[str] = deque(maxlen=200)
    try:
        async for line in process.stdout:
            if text := line.decode("utf-8", "replace").strip():
                said.append(text)
                progress(text)
        return await process.wait(), list(said)
    finally:
        if process.returncode is None:
            await to_end(_end(process))


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the process group, politely first: mmdebstrap removes what it made. The output is read on, or it could not write."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        async with asyncio.timeout(_GRACE_S):
            await process.communicate()
    except TimeoutError:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.communicate()
