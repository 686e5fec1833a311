"""What every pretend machine starts with: a small file tree, three users, its programs."""

from collections.abc import Callable
from pathlib import Path

from excise.errors import SpecError
from excise.spec import Limits, Mount
from excise.substrates.fake.files import ROOT, Device, Directory, File, Tree
from excise.substrates.fake.launch import MARK

ENV = {"PATH": "/usr/bin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
WORKDIR = "/work"
_USERS = ("root:x:0:0::/root:/bin/sh", "nobody:x:65534:65534::/nonexistent:/bin/false", "user:x:1000:1000::/home/user:/bin/sh")
_OPEN_TO_ALL = 0o1777


def image(now_ns: Callable[[], int], programs: tuple[str, ...]) -> Tree:
    """A new tree. None of it counts against a quota."""
    tree = Tree(now_ns)
    for path in ("/usr/bin", "/etc", "/root", "/home/user", "/proc", "/dev/fd", WORKDIR):
        tree.make_dir(path, parents=True)
    tree.link("/bin", "usr/bin")
    for path in ("/tmp", "/dev/shm", "/var/tmp"):  # noqa: S108 - the pretend machine's own
        tree.make_dir(path, parents=True).mode = _OPEN_TO_ALL
    tree.directory("/home/user").uid = tree.directory("/home/user").gid = 1000
    tree.directory(WORKDIR).mode = 0o777
    for kind in ("null", "zero", "tty"):
        tree.directory("/dev").entries[kind] = Device(0o666, kind=kind)
    put(tree, "/etc/passwd", "".join(f"{line}\n" for line in _USERS).encode())
    put(tree, "/etc/hostname", b"fake\n")
    for name in programs:
        put(tree, f"/usr/bin/{name}", MARK + name.encode(), 0o755)
    tree.used_bytes = tree.used_nodes = 0
    return tree


def put(tree: Tree, path: str, data: bytes, mode: int = 0o644) -> None:
    """A file with these bytes."""
    file = tree.open(path, ROOT, write=True, truncate=True, mode=mode)
    assert isinstance(file, File)
    tree.put(file, data, 0)


def mount(tree: Tree, asked: Mount, *, sealed: bool = True) -> None:
    """A copy of a host directory as it is now, which nobody inside can change."""
    source = Path(asked.source)
    if not asked.read_only:
        raise SpecError("fake has read-only mounts only: it lives in memory and writes to no host directory")
    if not source.is_dir():
        raise SpecError(f"mounts: {asked.source} is not a directory of this host")
    above = tree.make_dir(asked.target, parents=True)
    for path in sorted(source.rglob("*")):
        place = f"{asked.target}/{path.relative_to(source)}"
        if path.is_dir():
            tree.make_dir(place, parents=True)
        elif path.is_file():
            put(tree, place, path.read_bytes(), path.stat().st_mode & 0o7777)
    _seal(above, sealed)


def _seal(directory: Directory, sealed: bool) -> None:
    directory.sealed = sealed
    for entry in directory.entries.values():
        if isinstance(entry, Directory):
            _seal(entry, sealed)


def limit(tree: Tree, limits: Limits) -> Tree:
    """The same tree, under the sandbox's own limits."""
    tree.quota_bytes = limits.disk_bytes
    tree.quota_nodes = limits.inodes
    return tree
