"""Real overlays for tests of layers: what was done in one, and what one shows."""

import contextlib
import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

NAMES = ("a", "b", "c", "a/a", "a/b", "b/a", "b/c", "a/b/a", "a/b/c", "b/c/b", "a/b/c/a")
TEXTS = (b"", b"one\n", b"one\ntwo\nthree\n", b"one\n2\nthree", b"\0\x01\xff", "pätch\n".encode(), bytes(4096) + b"end\n")
paths = st.sampled_from(NAMES)
operation = st.one_of(
    st.tuples(st.just("write"), paths, st.sampled_from(TEXTS)),
    st.tuples(st.just("make_directory"), paths),
    st.tuples(st.just("remove"), paths),
    st.tuples(st.just("link"), paths, st.sampled_from(("a", "nowhere", "/etc/passwd"))),
    st.tuples(st.just("hard_link"), paths, paths),
    st.tuples(st.just("mode"), paths, st.sampled_from((0o600, 0o644, 0o755, 0o4755))),
    st.tuples(st.just("move"), paths, paths),
    st.tuples(st.just("pipe"), paths),
    st.tuples(st.just("owner"), paths, st.sampled_from((0, 1000))),
    st.tuples(st.just("attribute"), paths, st.sampled_from((b"x", b"y"))),
)
operations = st.lists(operation, max_size=12)
_START = (
    *(("make_directory", name) for name in ("a", "a/b", "b", "b/c")),
    *(("write", name, b"one\ntwo\nthree\n") for name in ("c", "a/a", "a/b/a", "a/b/c", "b/a", "b/c/b")),
    ("hard_link", "a/a", "b/b"),
)
"""Something to change: a row of random operations on nothing mostly fails."""


def apply(root: Path, done: Sequence[tuple[Any, ...]]) -> None:
    """Do what can be done of it; what cannot (a file in a file) is not."""
    for verb, name, *rest in done:
        with contextlib.suppress(OSError):
            _VERBS[verb](root / name, root, *rest)


def _write(path: Path, _: Path, data: bytes) -> None:
    if not path.is_symlink() and not path.is_fifo():
        path.write_bytes(data)


def _remove(path: Path, _: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _mode(path: Path, _: Path, mode: int) -> None:
    if not path.is_symlink():
        path.chmod(mode)


def _move(path: Path, root: Path, to: str) -> None:
    path.rename(root / to)


def _attribute(path: Path, _: Path, value: bytes) -> None:
    os.setxattr(path, "user.mine", value, follow_symlinks=False)


_VERBS: dict[str, Callable[..., object]] = {
    "write": _write,
    "make_directory": lambda path, _: path.mkdir(),
    "remove": _remove,
    "link": lambda path, _, to: path.symlink_to(to),
    "hard_link": lambda path, root, to: os.link(path, root / to, follow_symlinks=False),
    "mode": _mode,
    "move": _move,
    "pipe": lambda path, _: os.mkfifo(path),
    "owner": lambda path, _, owner: os.chown(path, owner, owner, follow_symlinks=False),
    "attribute": _attribute,
}


@contextlib.contextmanager
def overlay(place: Path, lowers: Sequence[Path], upper: Path | None = None) -> Generator[Path]:
    """The layers, topmost first, as the kernel shows them, mounted with `userxattr` as sandboxes' roots are."""
    shown = place / "shown"
    shown.mkdir(parents=True, exist_ok=True)
    stack = list(lowers)
    if upper is None and len(stack) == 1:  # a lone lower is refused
        stack.append(place / "empty")
        stack[-1].mkdir(exist_ok=True)
    options = f"userxattr,lowerdir={':'.join(map(str, stack))}"
    if upper is not None:
        upper.mkdir()
        (place / f"work-{upper.name}").mkdir()
        options += f",upperdir={upper},workdir={place / f'work-{upper.name}'}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(shown)], check=True)
    try:
        yield shown
    finally:
        subprocess.run(["umount", str(shown)], check=True)


def layers(place: Path, base: Sequence[Any], rounds: Sequence[Sequence[Any]]) -> list[Path]:
    """A base on which this was done, and over it a layer of each round's doings; the topmost first."""
    made = [place / "base"]
    made[0].mkdir(parents=True)
    apply(made[0], (*_START, *base))
    for number, done in enumerate(rounds):
        upper = place / f"upper-{number}"
        with overlay(place, made, upper) as shown:
            apply(shown, done)
        made.insert(0, upper)
    return made


def seen(root: Path) -> dict[str, tuple[object, ...]]:
    """Everything below `root`, by the most plain-spoken means."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        plain = stat.S_ISREG(status.st_mode)
        kept = () if path.is_symlink() else tuple((name, os.getxattr(path, name)) for name in sorted(os.listxattr(path)))
        held = path.read_bytes() if plain else str(path.readlink()) if path.is_symlink() else None
        found[str(path.relative_to(root))] = (status.st_mode, status.st_uid, status.st_gid, kept, held)
    return found


def links(root: Path) -> set[frozenset[str]]:
    """Groups of names that are one file."""
    groups: dict[int, set[str]] = {}
    for path in root.rglob("*"):
        if not path.is_dir() or path.is_symlink():
            groups.setdefault(path.lstat().st_ino, set()).add(str(path.relative_to(root)))
    return {frozenset(group) for group in groups.values() if len(group) > 1}


@contextlib.contextmanager
def opened(*paths: Path) -> Generator[list[int]]:
    with contextlib.ExitStack() as stack:
        descriptors: list[int] = []
        for path in paths:
            descriptors.append(os.open(path, os.O_PATH | os.O_DIRECTORY))
            stack.callback(os.close, descriptors[-1])
        yield descriptors
