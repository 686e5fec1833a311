"""From a spec and its image to an OCI bundle, and the flags it is run with: pure."""

from pathlib import Path
from typing import Any

import msgspec

from excise.errors import SpecError
from excise.network.client import Phases
from excise.network.policy import Policy
from excise.spec import Limits, Spec
from excise.storage.image import Image
from excise.substrates.gvisor.program import Runsc

GUEST = "/.excise-guest"
ID = "sandbox"
"""Each container is alone in its state directory, so all have the same name."""
HOSTNAME = "localhost"
"""A name that every image's /etc/hosts knows: programs that look their own host's name up find it without a network."""
# Whoever adopts a process reaps it; the mark keeps it from being taken for one that an action left.
_PID_1 = "while :; do EXCISE_ACTION=sandbox sleep 2147483647 & wait; done"
_CAPABILITIES = tuple(
    f"CAP_{name}"
    for name in (
        *("CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID", "SETFCAP", "SETPCAP"),
        *("NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE"),
    )
)
"""As Docker has them: without ptrace, which keeps a session's shell its own."""
_DESCRIPTORS = {"type": "RLIMIT_NOFILE", "soft": 1024, "hard": 1 << 19}
MEMORY = ("/dev/shm", "/tmp")  # noqa: S108 - the sandbox's own
"""Where each sandbox has an empty file system of its own, which no snapshot keeps."""
_GROUPS = "/sys/fs/cgroup"
_OURS = 2
_PERIOD_US = 100_000
_LEAST_QUOTA_US = 1_000  # the kernel takes no less
_KERNELS = frozenset({"proc", "sys", "dev"})


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """What a sandbox begins with."""

    spec: Spec
    image: Image
    guest: Path | None = None
    """The guest's program, which is then PID 1."""
    network: Phases = Phases(Policy("none"), Policy("none"))
    upper: Path | None = None
    """What is over the image's files: a snapshot's tar."""

    @property
    def workdir(self) -> str:
        return self.spec.workdir if self.spec.workdir is not None else self.image.workdir

    @property
    def user(self) -> str | None:
        return self.spec.user if self.spec.user is not None else self.image.user


def environment(start: Start) -> dict[str, str]:
    return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", **start.image.env}


def process(argv: tuple[str, ...], env: dict[str, str], user: tuple[int, int] = (0, 0)) -> dict[str, Any]:
    """A program of the sandbox, as `runsc run` and `runsc exec` take it."""
    held = _CAPABILITIES if user[0] == 0 else ()
    return {
        "terminal": False,
        "user": {"uid": user[0], "gid": user[1], "additionalGids": [user[1]]},
        "args": list(argv),
        "env": [f"{name}={value}" for name, value in env.items()],
        "cwd": "/",
        "capabilities": {"bounding": _CAPABILITIES, "effective": held, "permitted": held},
        "rlimits": [_DESCRIPTORS],
    }


def config(start: Start, root: str, group: str | None, network: Path | None = None) -> dict[str, Any]:
    """config.json: `root` is the image's files, `group` the control group that limits it, `network` a namespace's file."""
    limits = start.spec.limits
    argv = ("sh", "-c", _PID_1)
    if start.guest is not None:
        # gVisor lets anybody kill PID 1; the guest holds one capability more, to keep what it starts from doing so.
        argv = (GUEST, "-u", *(("-d",) if limits.disk_bytes is not None else ()), *_processes(limits))
    first = process(argv, environment(start))
    if start.guest is not None:
        first["capabilities"] = dict.fromkeys(first["capabilities"], (*_CAPABILITIES, "CAP_SYS_ADMIN"))
    made: dict[str, Any] = {
        "ociVersion": "1.0.2",
        "process": first,
        "root": {"path": root, "readonly": False},
        "hostname": HOSTNAME,
        "mounts": _mounts(start),
        "linux": {"namespaces": [*({"type": kind} for kind in ("pid", "ipc", "uts", "mount")), _network(network)]},
        "annotations": {} if start.upper is None else {"dev.gvisor.tar.rootfs.upper": str(start.upper)},
    }
    if group is not None:
        quota_us = max(_LEAST_QUOTA_US, int((limits.cpus or 0) * _PERIOD_US))
        made["linux"] |= {"cgroupsPath": group, "resources": {"cpu": {"quota": quota_us, "period": _PERIOD_US}}}
    return made


def _network(namespace: Path | None) -> dict[str, str]:
    return {"type": "network"} if namespace is None else {"type": "network", "path": str(namespace)}


def _mounts(start: Start) -> list[dict[str, Any]]:
    own = ["nosuid", "nodev", "mode=1777", *_size(start.spec.limits)]
    made: list[dict[str, Any]] = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["ro", "nosuid", "nodev", "noexec"]},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
        {"destination": "/dev/pts", "type": "devpts", "source": "devpts"},
        *({"destination": path, "type": "tmpfs", "source": "tmpfs", "options": own} for path in MEMORY),
    ]
    made += [_bind(source, target, read_only=True) for source, target in start.image.binds]
    made += [_bind(mount.source, mount.target, read_only=mount.read_only) for mount in start.spec.mounts]
    if start.spec.limits.pids is not None:
        made.append({"destination": _GROUPS, "type": "cgroup", "source": "cgroup"})
    if start.guest is not None:
        made.append(_bind(str(start.guest), GUEST, read_only=True))
    return made


def _bind(source: str, target: str, *, read_only: bool) -> dict[str, Any]:
    return {
        "destination": target,
        "type": "bind",
        "source": source,
        "options": ["rbind", "ro" if read_only else "rw", "nosuid"],
    }


def _processes(limits: Limits) -> tuple[str, ...]:
    """The guest sets it itself, on gVisor's own groups; it and the runner that waits for an action are not the sandbox's."""
    return () if limits.pids is None else ("-n", f"{_GROUPS}/{ID}:{limits.pids + _OURS}")


def _size(limits: Limits) -> list[str]:
    return [] if limits.disk_bytes is None else [f"size={limits.disk_bytes}"]


def flags(start: Start, runsc: Runsc, *, grouped: bool) -> tuple[str, ...]:
    """How its files are written, in the sandbox's memory and nowhere else; whether it has a control group."""
    size = "".join(f",{word}" for word in _size(start.spec.limits))
    made = [f"--overlay2=root:memory{size}" if runsc.sizes else "--overlay"]
    if start.upper is not None:
        made.append("--allow-rootfs-tar-annotation")
    if start.spec.limits.pids is not None:
        made.append("--in-sandbox-cgroup=v2")
    if not grouped:
        made.append("--ignore-cgroups")
    return tuple(made)


def require_places(spec: Spec) -> None:
    """Refuse what cannot be mounted or entered."""
    if spec.workdir is not None and not spec.workdir.startswith("/"):
        raise SpecError(f"workdir={spec.workdir!r}: it is a path from the root")
    for mount in spec.mounts:
        if not mount.target.startswith("/") or mount.target.strip("/").partition("/")[0] in {*_KERNELS, ""}:
            raise SpecError(f"a mount's target is a path below the root, and not in /proc, /sys or /dev: {mount.target!r}")
        if not Path(mount.source).is_absolute() or not Path(mount.source).exists():
            raise SpecError(f"there is nothing to mount at {mount.source!r}: name a directory or file of this machine")
