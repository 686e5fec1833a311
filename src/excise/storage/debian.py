"""image="excise/base": a small Debian with Python, pytest and git, built by mmdebstrap from Debian's own packages."""

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

from excise.errors import SpecError, SubstrateError
from excise.storage.apt_sources import sources
from excise.storage.background import Stop, in_thread, to_end
from excise.storage.store import PATH, Image, Record, find, make
from excise.storage.unpack import unpack

NAME = "excise/base"
_SUITE = "bookworm"
_PACKAGES = ("python3", "python3-pytest", "git", "bash", "procps", "ca-certificates")
_EPOCH = 1735689600
"""2025-01-01: no file is younger, so that two builds of the same packages are the same bytes."""
_LEFT_OUT = ("/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/doc/*")
_ENV = {"PATH": PATH, "HOME": "/work", "LANG": "C.UTF-8"}
_WORKDIR = "/work"
_HOOKS = (
    # What mmdebstrap copied from this machine, a mirror's address (and password) among it, does not belong in an image.
    'rm -rf "$1"/etc/apt/sources.list.d/* "$1"/etc/apt/apt.conf.d/99mmdebstrap "$1"/etc/hostname "$1"/etc/resolv.conf',
    f'echo "deb http://deb.debian.org/debian {_SUITE} main" > "$1"/etc/apt/sources.list',
    r'printf "" > "$1"/etc/resolv.conf; echo sandbox > "$1"/etc/hostname',
    r'printf "127.0.0.1 localhost\n::1 localhost\n" > "$1"/etc/hosts',
    'echo "user:x:1000:1000:user:/work:/bin/bash" >> "$1"/etc/passwd; echo "user:x:1000:" >> "$1"/etc/group',
    'mkdir -m 0777 "$1"/work; chmod 0777 "$1"/work',
    'ln -sf /usr/share/zoneinfo/Etc/UTC "$1"/etc/localtime',
    # A .pyc names its source's time. Sources get the time they will have in the tar, or each start would compile them again.
    f'find "$1"/usr/lib/python3* "$1"/etc/python3* -name "*.py" -newermt @{_EPOCH} -exec touch -h -d @{_EPOCH} {{}} +',
    'chroot "$1" python3 -m compileall -q -f --invalidation-mode timestamp /usr/lib/python3 /usr/lib/python3.11 || true',
    'rm -rf "$1"/var/cache/apt/* "$1"/var/lib/apt/lists/* "$1"/var/cache/debconf/*-old "$1"/var/lib/dpkg/*-old "$1"/var/log/*',
)
_GRACE_S = 20.0
"""How long mmdebstrap may take to unmount and clean up once it is told to end."""
_CAP_SYS_ADMIN = 1 << 21


def key() -> str:
    """The recipe's digest: whatever is in it makes another image."""
    recipe = "\0".join((*_recipe(), platform.machine(), str(_EPOCH), repr(sorted(_ENV.items())), _WORKDIR))
    return f"base-{hashlib.sha256(recipe.encode()).hexdigest()}"


def built() -> Image:
    """The image, or how to build it."""
    image = find(key())
    if image is None:
        raise SpecError(f"image {NAME} is not built on this machine yet; run: excise image build {NAME}")
    return image


async def build(progress: Callable[[str], None]) -> Image:
    """Build the image, unless it is there; it takes a minute or two and Debian's packages from the network."""

    async def fill(making: Path) -> Record:
        mmdebstrap = shutil.which("mmdebstrap")
        if mmdebstrap is None:
            raise SpecError(f"building {NAME} takes mmdebstrap, which is not installed; run: apt-get install mmdebstrap")
        await _bootstrap(mmdebstrap, making, progress)
        progress("unpacking")
        return await in_thread(lambda stop: _unpack(making, stop))

    return await make(key(), fill)


def _unpack(making: Path, stop: Stop) -> Record:
    tar = making / "root.tar"
    (making / "root").mkdir()
    size_bytes = unpack(tar, making / "root", stop, named=NAME)
    with tar.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Record(name=NAME, digest=f"sha256:{digest}", env=_ENV, workdir=_WORKDIR, size_bytes=size_bytes)


async def _bootstrap(mmdebstrap: str, making: Path, progress: Callable[[str], None]) -> None:
    scratch = making / "scratch"
    scratch.mkdir()
    mirrors: list[str] = []
    for name, text in sources(_SUITE).items():
        (scratch / name).write_text(text)
        mirrors.append(str(scratch / name))
    argv = [mmdebstrap, f"--mode={_mode()}", *_recipe(), str(making / "root.tar"), *mirrors]
    code, said = await run_logged(argv, _environment(scratch), progress)
    if code != 0:
        raise _failure(said)
    await in_thread(lambda _: shutil.rmtree(scratch))


def _recipe() -> list[str]:
    """What mmdebstrap is asked for, wherever it comes from and goes to."""
    options = [f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT]
    options.append("--dpkgopt=path-include=/usr/share/doc/*/copyright")
    hooks = [f"--customize-hook={hook}" for hook in _HOOKS]
    # The last hook cleans apt's files; mmdebstrap's own way leaves a directory whose owner depends on who builds.
    return [
        "--variant=minbase",
        "--format=tar",
        "--skip=cleanup/apt",
        f"--include={','.join(_PACKAGES)}",
        *options,
        *hooks,
        _SUITE,
    ]


def _mode() -> str:
    """`unshare` mounts in a namespace of its own, so that nothing stays mounted however it ends; a container's root may not."""
    if os.geteuid() != 0:
        return "unshare"
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return "unshare" if int(fields["CapEff"], 16) & _CAP_SYS_ADMIN else "root"


def _environment(scratch: Path) -> dict[str, str]:
    env = {"PATH": f"{PATH}:{os.environ.get('PATH', '')}", "LC_ALL": "C.UTF-8", "SOURCE_DATE_EPOCH": str(_EPOCH)}
    passed = ("HOME", "http_proxy", "https_proxy", "no_proxy", "TMPDIR")
    env |= {name: os.environ[name] for name in passed if name in os.environ}
    if os.geteuid() == 0:
        # Beside the result, where there is room for it. The sub-uids of an ordinary user cannot reach into the cache.
        env["TMPDIR"] = str(scratch)
    return env


def _failure(said: list[str]) -> SpecError | SubstrateError:
    errors = [line for line in said if line.startswith(("E:", "W: Failed", "Err:"))] or said
    tail = " ".join(" ".join(errors[-4:]).split())[-600:]
    if any("No space left on device" in line for line in said):
        return SubstrateError(
            f"the disk is full, so {NAME} was not built: free some space, or set EXCISE_HOME to a larger disk"
        )
    if os.geteuid() != 0 and any(word in tail for word in ("newuidmap", "subuid", "unshare", "user namespace")):
        return SpecError(f"{NAME} needs user namespaces and `apt-get install uidmap`, or root, to be built; mmdebstrap: {tail}")
    return SubstrateError(f"{NAME} was not built, nothing of it is left; is the network there? mmdebstrap: {tail}")


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
