"""What this machine offers to substrates, each answer found by trying it; nothing a trial makes outlives it."""

import asyncio
import os
import shutil
import tempfile

import msgspec

from excise.cli.sentences import sentence
from excise.errors import ExciseError
from excise.storage.home import cache_dir

TRIAL_S = 5.0
IMAGE_BYTES = 2 << 30
"""Room to build excise/base in: the tree, its tar, and the packages."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `excise doctor`."""

    name: str
    works: bool
    detail: str
    """What was seen when it was tried."""
    remedy: str = ""
    """The command or change that would enable it."""


async def findings() -> tuple[Finding, ...]:
    """Every trial of the machine itself, all at once."""
    trials = (_control_groups, _user_namespaces, _uids, _overlay, _kvm, _firecracker, _mmdebstrap, _docker_socket, _cache)
    return tuple(await asyncio.gather(*(trial() for trial in trials)))


async def attempt(*argv: str) -> tuple[bool, str]:
    """Whether a program succeeds, and the last line it wrote."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    except OSError as error:
        return False, f"{argv[0]}: {error.strerror}"
    try:
        async with asyncio.timeout(TRIAL_S):
            written, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.communicate()
        return False, f"{argv[0]} did not end in {TRIAL_S:g} s"
    lines = written.decode("utf-8", "replace").strip().splitlines()
    return process.returncode == 0, lines[-1] if lines else ""


async def _control_groups() -> Finding:
    """Which limits can be had here, by groups that were made, limited and removed."""
    from excise.substrates.namespace import cgroups  # noqa: PLC0415 - only doctor pays for it

    found = await asyncio.to_thread(cgroups.find)
    mounted = sorted({tree.version for tree in cgroups.trees()})
    versions = " and ".join(f"v{version}" for version in mounted) or "none is mounted"
    limits = " and ".join(sorted(found.enforced)) or "nothing"
    works = len(found.enforced) == len(cgroups.CONTROLLERS)
    delegated = "have the group delegated: systemd-run --user --scope -p Delegate=yes excise ..."
    remedy = f"run as root, or {delegated}" if mounted == [2] else "run as root; v1 gives an ordinary user no limits"
    return Finding(name="cgroups", works=works, detail=f"{versions}; it can limit {limits}", remedy="" if works else remedy)


async def _user_namespaces() -> Finding:
    works, said = await attempt("unshare", "--user", "--map-root-user", "true")
    remedy = "sysctl -w user.max_user_namespaces=15000 kernel.apparmor_restrict_unprivileged_userns=0"
    if shutil.which("unshare") is None:
        remedy = "apt-get install util-linux   (to try it; `namespace` does not need it)"
    return Finding(
        name="user namespaces",
        works=works,
        detail="a process ran in one" if works else said,
        remedy="" if works else remedy,
    )


async def _uids() -> Finding:
    """How many users a namespace sandbox can have, as its launcher found out."""
    from excise.substrates.namespace import denial, request  # noqa: PLC0415 - only doctor pays for it
    from excise.substrates.namespace.launcher import Launcher  # noqa: PLC0415 - as above

    name = "uids of a sandbox"
    try:
        launcher = Launcher()
        try:
            async with asyncio.timeout(TRIAL_S):
                hello = await launcher.hello()
        finally:
            await launcher.end()
    except (ExciseError, OSError, TimeoutError) as error:
        return Finding(name=name, works=False, detail=sentence(error))
    if hello.number(request.TAG_USERS) > 1:
        whose = "each sandbox has ids of its own, that are nobody's on the host"
        if hello.number(request.TAG_ROOTLESS):  # it says so itself where it is a container's root
            whose = hello.text(request.TAG_MESSAGE) or "root inside is you outside, and your sandboxes share their ids"
        detail = f"{hello.number(request.TAG_USERS)}: user= works in `namespace`; {whose}"
        return Finding(name=name, works=True, detail=detail)
    detail = f"1, so `namespace` has no user=: {hello.text(request.TAG_MESSAGE)}"
    return Finding(name=name, works=False, detail=detail, remedy=denial.more_uids())


async def _overlay() -> Finding:
    """An overlay in a mount namespace of its own, on a tmpfs, so that the mounts end with the process."""
    script = (
        'mount -t tmpfs none "$1" && cd "$1" && mkdir lower upper work merged'
        " && mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged && touch merged/file"
    )
    rootless = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    with tempfile.TemporaryDirectory(prefix="excise-doctor-") as place:
        works, said = await attempt("unshare", *rootless, "--mount", "sh", "-c", script, "sh", place)
    return Finding(
        name="overlayfs",
        works=works,
        detail="mounted and written" if works else said,
        remedy="" if works else "run as root, or enable user namespaces; the kernel needs 5.11 or newer for an ordinary user",
    )


async def _kvm() -> Finding:
    """Noted only: a guest that boots is the one proof that it works, and the row of `microvm` says whether one does."""
    try:
        os.close(os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return Finding(name="/dev/kvm", works=False, detail=f"{error.strerror}; microvm emulates the processor")
    return Finding(name="/dev/kvm", works=True, detail="opens; the row of microvm says whether a kernel boots under it")


async def _firecracker() -> Finding:
    """Only whether it is there: what we have for it has been run on no machine of ours, and must not be praised."""
    from excise.vmm.firecracker import LABEL  # noqa: PLC0415 - only doctor pays for it

    found = shutil.which("firecracker")
    detail = f"microvm?vmm=firecracker is {LABEL}; {f'here is {found}' if found else 'the binary is not here'}"
    return Finding(name="firecracker", works=False, detail=detail)


async def _mmdebstrap() -> Finding:
    works, said = await attempt("mmdebstrap", "--version")
    return Finding(
        name="mmdebstrap",
        works=works,
        detail=said,
        remedy="" if works else "apt-get install mmdebstrap   (`excise image build` needs it)",
    )


async def _docker_socket() -> Finding:
    """The socket alone; what the daemon behind it can do is the docker substrate's own finding."""
    name = "docker socket"
    host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if not host.startswith("unix://"):
        return Finding(name=name, works=True, detail=f"DOCKER_HOST is {host}: see the substrate docker")
    path = host.removeprefix("unix://")
    try:
        async with asyncio.timeout(TRIAL_S):
            _, writer = await asyncio.open_unix_connection(path)
        writer.close()
        await writer.wait_closed()
    except (OSError, TimeoutError) as error:
        named = "DOCKER_HOST" in os.environ
        remedy = "unset DOCKER_HOST, or start the daemon it names" if named else "apt-get install docker.io && dockerd &"
        if isinstance(error, PermissionError):
            remedy = "usermod -aG docker $USER, then log in again"
        return Finding(name=name, works=False, detail=f"{path}: {getattr(error, 'strerror', None) or error}", remedy=remedy)
    return Finding(name=name, works=True, detail=f"{path} answers")


async def _cache() -> Finding:
    """Where images are kept, written to once, and how much room there is."""
    name = "image cache"
    try:
        place = cache_dir()
        with tempfile.TemporaryFile(dir=place) as trial:
            trial.write(b"trial")
    except (ExciseError, OSError) as error:
        remedy = "set EXCISE_HOME to a directory you own, on a disk with room"
        return Finding(name=name, works=False, detail=sentence(error), remedy=remedy)
    free_bytes = shutil.disk_usage(place).free
    detail = f"{place}: {free_bytes / 2**30:.1f} GiB free"
    if free_bytes < IMAGE_BYTES:
        return Finding(name=name, works=False, detail=detail, remedy="set EXCISE_HOME to a directory on a disk with 2 GiB free")
    return Finding(name=name, works=True, detail=detail)
