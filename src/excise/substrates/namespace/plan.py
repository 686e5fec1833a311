"""From a spec and its image to what the launcher is told: pure."""

from collections.abc import Sequence

from excise.errors import SpecError
from excise.spec import Spec
from excise.storage.image import Image
from excise.substrates.namespace.request import Bind, Cgroup, Create

MOST_BINDS = 64
"""As many as a launcher takes: those of the image, and the spec's mounts."""
_MOST_INODES = 1 << 50  # what a launcher takes, and no machine has
_KERNELS = frozenset({"proc", "sys", "dev"})
_DEVICES_THERE = frozenset(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty"))
HOSTNAME = "localhost"
"""A name that every image's /etc/hosts knows: programs that look their own host's name up find it without a network."""


def plan(
    spec: Spec,
    image: Image,
    *,
    layers: Sequence[int] = (),
    cgroups: Sequence[Cgroup] = (),
    sudo: bool = False,
    listen_port: int | None = None,
) -> Create:
    """What is asked of the launcher for `spec` on `image`, and on layers above it, the topmost first."""
    binds = (*(Bind(source, target) for source, target in image.binds), *_mounts(spec))
    if len(binds) > MOST_BINDS:
        room = MOST_BINDS - len(image.binds)
        raise SpecError(f"mounts: {len(spec.mounts)} are more than the {room} there is room for; mount a directory above them")
    return Create(
        lowers=(*layers, *map(str, image.over), str(image.root)),
        binds=binds,
        hostname=HOSTNAME,
        disk_bytes=spec.limits.disk_bytes,
        inodes=None if spec.limits.inodes is None else min(spec.limits.inodes, _MOST_INODES),
        cgroups=tuple(cgroups),
        may_gain_privileges=sudo,
        listen_port=listen_port,
        directories=(workdir(spec, image),),
        devices=_devices(spec),
    )


def workdir(spec: Spec, image: Image) -> str:
    """Where actions work unless they say otherwise."""
    chosen = spec.workdir if spec.workdir is not None else image.workdir
    if not _is_plain(chosen):
        raise SpecError(f"workdir={chosen!r}: a working directory is an absolute path without ..")
    return chosen


def user(spec: Spec, image: Image, *, users: bool) -> str | None:
    """Whom actions run as. With one uid there is nobody to choose: what the image asks for is who there is."""
    return (spec.user if spec.user is not None else image.user) if users else None


def _mounts(spec: Spec) -> tuple[Bind, ...]:
    for mount in spec.mounts:
        for path in (mount.source, mount.target):
            if not _is_plain(path) or path == "/":
                raise SpecError(f"{path!r} cannot be mounted: its source and target are absolute paths below / without ..")
        if _first_word(mount.target) in _KERNELS:
            raise SpecError(f"mounts: {mount.target!r} is the kernel's own; choose a target that is not in /proc, /sys or /dev")
    return tuple(Bind(mount.source, mount.target, mount.read_only) for mount in spec.mounts)


def _devices(spec: Spec) -> tuple[str, ...]:
    for device in spec.devices:
        if not device.startswith("/dev/") or "/" in device[5:] or device[5:6] in ("", "."):
            raise SpecError(f"devices: {device!r} is not directly in /dev, where alone one can be shown")
    return tuple(dict.fromkeys(device for device in spec.devices if device not in _DEVICES_THERE))


def _first_word(path: str) -> str:
    return next((word for word in path.split("/") if word not in ("", ".")), "")


def _is_plain(path: str) -> bool:
    return path.startswith("/") and ".." not in path.split("/")
