"""The images that Excise builds from Debian's own packages: excise/base for sandboxes, excise/machine for their machines."""

from collections.abc import Callable

from excise.storage import bootstrap
from excise.storage.bootstrap import EPOCH, SUITE, Recipe
from excise.storage.store import PATH, Image

NAME = "excise/base"
MACHINE = "excise/machine"
_WORKDIR = "/work"
_ENV = {"PATH": PATH, "HOME": _WORKDIR, "LANG": "C.UTF-8"}
_HOOKS = (
    # What mmdebstrap copied from this machine, a mirror's address (and password) among it, does not belong in an image.
    'rm -rf "$1"/etc/apt/sources.list.d/* "$1"/etc/apt/apt.conf.d/99mmdebstrap "$1"/etc/hostname "$1"/etc/resolv.conf',
    f'echo "deb http://deb.debian.org/debian {SUITE} main" > "$1"/etc/apt/sources.list',
    r'printf "" > "$1"/etc/resolv.conf; echo sandbox > "$1"/etc/hostname',
    r'printf "127.0.0.1 localhost\n::1 localhost\n" > "$1"/etc/hosts',
    'echo "user:x:1000:1000:user:/work:/bin/bash" >> "$1"/etc/passwd; echo "user:x:1000:" >> "$1"/etc/group',
    'mkdir -m 0777 "$1"/work; chmod 0777 "$1"/work',
    'ln -sf /usr/share/zoneinfo/Etc/UTC "$1"/etc/localtime',
    # A .pyc names its source's time. Sources get the time they will have in the tar, or each start would compile them again.
    f'find "$1"/usr/lib/python3* "$1"/etc/python3* -name "*.py" -newermt @{EPOCH} -exec touch -h -d @{EPOCH} {{}} +',
    'chroot "$1" python3 -m compileall -q -f --invalidation-mode timestamp /usr/lib/python3 /usr/lib/python3.11 || true',
    'rm -rf "$1"/var/cache/apt/* "$1"/var/lib/apt/lists/* "$1"/var/cache/debconf/*-old "$1"/var/lib/dpkg/*-old "$1"/var/log/*',
)
BASE = Recipe(
    name=NAME,
    packages=("python3", "python3-pytest", "git", "bash", "procps", "ca-certificates"),
    hooks=_HOOKS,
    env=_ENV,
    workdir=_WORKDIR,
)
# What a machine boots into before its sandbox is entered: an init system, sshd, and a busybox that needs no libraries.
# No key, name or id is in it: every machine has its own. Generators look, at every boot, for what such a machine has not got.
SYSTEM = Recipe(
    name=MACHINE,
    packages=("systemd-sysv", "openssh-server", "busybox-static"),
    hooks=(
        *_HOOKS[:4],
        'rm -f "$1"/etc/ssh/ssh_host_* "$1"/usr/lib/systemd/system-generators/*',
        'truncate -s 0 "$1"/etc/machine-id; '
        'sed -i "s,^root:x:0:0:root:/root:.*,root:x:0:0:root:/root:/bin/sh," "$1"/etc/passwd',
        'mkdir -p "$1"/sandbox "$1"/run/sshd',
        _HOOKS[-1],
    ),
    env={"PATH": PATH},
    workdir="/",
)
RECIPES = {recipe.name: recipe for recipe in (BASE, SYSTEM)}


def key() -> str:
    """The digest of what makes excise/base."""
    return BASE.key


def built(name: str = NAME) -> Image:
    """The image called `name`, or how to build it."""
    return bootstrap.built(RECIPES[name])


async def build(progress: Callable[[str], None], name: str = NAME) -> Image:
    """Build the image called `name`, unless it is there."""
    return await bootstrap.build(RECIPES[name], progress)
