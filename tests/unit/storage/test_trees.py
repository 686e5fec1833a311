"""Trees as layers: digests, copies, squashing and removal, against overlays of the kernel's own."""

import contextlib
import os
import socket
import stat
import tempfile
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from excise.storage.trees import whole
from excise.storage.trees.copy import copy, squash

from .overlays import layers, links, opened, operations, overlay, seen

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="overlays are mounted by root here; rootless ones by the flow tests")
real = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@contextlib.contextmanager
def _place(tmp_path: Path) -> Generator[Path]:
    with tempfile.TemporaryDirectory(dir=tmp_path) as place:
        yield Path(place)


def _copied(source: Path, target: Path) -> Path:
    target.mkdir()
    with opened(source, target) as (read, write):
        copy(read, write)
    return target


def _digest(path: Path) -> str:
    with opened(path) as (tree,):
        return whole.digest(tree)


def _full(root: Path) -> Path:
    """One of everything."""
    root.mkdir()
    (root / "directory").mkdir(mode=0o2750)
    (root / "directory/file").write_bytes(b"content")
    os.link(root / "directory/file", root / "directory/again")
    (root / "link").symlink_to("directory/file")
    os.mkfifo(root / "pipe", 0o640)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "socket"))
    (root / "empty").write_bytes(b"")
    with (root / "holes").open("wb") as file:
        file.seek(3 << 20)
        file.write(b"after a hole")
        file.truncate(9 << 20)
    os.setxattr(root / "empty", "user.mine", b"1")
    os.mknod(root / "whiteout", stat.S_IFCHR, 0)
    os.setxattr(root / "directory", whole.OPAQUE, b"y")
    (root / b"\xff name".decode("utf-8", "surrogateescape")).write_bytes(b"not UTF-8")
    os.utime(root / "directory/file", ns=(10**18, 10**18 + 123))
    os.utime(root / "directory", ns=(10**18, 10**18 + 5))
    return root


@root_only
def test_a_copy_has_all_that_the_tree_has_and_its_times(tmp_path: Path) -> None:
    source = _full(tmp_path / "source")
    os.mknod(source / "device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    os.chown(source / "link", 7, 8, follow_symlinks=False)
    os.chown(source / "empty", 1000, 1001)
    (source / "empty").chmod(0o6755)
    os.setxattr(source / "empty", "security.capability", bytes.fromhex("0100000200040000000000000000000000000000"))
    made = _copied(source, tmp_path / "made")
    assert seen(made) == seen(source)
    assert links(made) == links(source) == {frozenset({"directory/file", "directory/again"})}
    for name in ("directory", "directory/file", "holes", "link", "pipe"):
        assert (made / name).lstat().st_mtime_ns == (source / name).lstat().st_mtime_ns
    assert (made / "device").stat().st_rdev == os.makedev(1, 3)
    assert (made / "whiteout").lstat().st_rdev == 0
    assert (made / "holes").stat().st_blocks * 512 < 4 << 20
    assert _digest(made) == _digest(source)


def _rename(root: Path) -> None:
    (root / "empty").rename(root / "emptY")


def _break_link(root: Path) -> None:
    (root / "directory/again").unlink()
    (root / "directory/again").write_bytes(b"content")
    (root / "directory/again").chmod(0o644)


def _move_between_directories(root: Path) -> None:
    (root / "directory/sub").mkdir()
    (root / "sub").mkdir()
    (root / "directory/again").rename(root / "sub/again")


def _unhide(root: Path) -> None:
    (root / "whiteout").unlink()
    (root / "whiteout").write_bytes(b"")


def _flip_in_block(root: Path) -> None:
    with (root / "holes").open("r+b") as file:
        file.seek(5 << 20)
        file.write(b"\1")


@root_only
@pytest.mark.parametrize(
    "change",
    [
        _rename,
        _break_link,
        _move_between_directories,
        _unhide,
        _flip_in_block,
        lambda root: (root / "directory/file").write_bytes(b"Content"),
        lambda root: (root / "empty").chmod(0o600),
        lambda root: os.chown(root / "empty", 1, 0),
        lambda root: os.chown(root / "pipe", 0, 1),
        lambda root: os.setxattr(root / "empty", "user.mine", b"2"),
        lambda root: os.setxattr(root / "empty", "user.more", b""),
        lambda root: os.removexattr(root / "directory", whole.OPAQUE),
        lambda root: os.truncate(root / "holes", (9 << 20) + 1),
        lambda root: (root / "new").symlink_to("x"),
        lambda root: ((root / "link").unlink(), (root / "link").symlink_to("directory/again")),
        lambda root: root.chmod(0o700),
        lambda root: (root / "directory/deep").mkdir(),
    ],
)
def test_a_digest_changes_with_everything(tmp_path: Path, change: Callable[[Path], object]) -> None:
    root = _full(tmp_path / "tree")
    root.chmod(0o755)
    before = _digest(root)
    assert _digest(root) == before
    change(root)
    assert _digest(root) != before


@root_only
def test_a_digest_does_not_change_with_what_is_not_content(tmp_path: Path) -> None:
    root = _full(tmp_path / "tree")
    before = _digest(root)
    os.utime(root / "empty", ns=(1, 1))
    os.setxattr(root / "directory", "user.overlay.impure", b"y")
    os.setxattr(root / "empty", "user.overlay.origin", b"anything")
    with (root / "holes").open("r+b") as file:  # zeros where a hole was
        file.seek((1 << 20) + 100)
        file.write(bytes(1 << 20))
    assert _digest(root) == before


def test_what_a_program_called_as_overlayfs_does_is_content(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    before = _digest(tmp_path)
    os.setxattr(tmp_path / "file", "user.overlay.overlay.opaque", b"y")
    assert _digest(tmp_path) != before


def test_a_link_is_never_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_bytes(b"1")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "to-directory").symlink_to(tmp_path / "outside")
    (tree / "to-file").symlink_to(tmp_path / "outside/secret")
    before = _digest(tree)
    (tmp_path / "outside/secret").write_bytes(b"2")
    assert _digest(tree) == before
    assert (_copied(tree, tmp_path / "made") / "to-directory").is_symlink()
    with opened(tree) as (descriptor,):
        whole.remove(descriptor)
    assert (tmp_path / "outside/secret").exists()


@root_only
@real
@given(base=operations, done=operations)
def test_copies_of_uppers_have_their_digest_and_show_the_same(tmp_path: Path, base: list[Any], done: list[Any]) -> None:
    with _place(tmp_path) as place:
        upper, lower = layers(place, base, [done])
        made = _copied(upper, place / "made")
        assert _digest(made) == _digest(upper)
        with overlay(place / "one", [upper, lower]) as shown:
            wanted, groups = seen(shown), links(shown)
        with overlay(place / "other", [made, lower]) as shown:
            assert (seen(shown), links(shown)) == (wanted, groups)


@root_only
@real
@given(base=operations, first=operations, second=operations, third=operations)
def test_squashed_layers_show_what_the_layers_show(
    tmp_path: Path, base: list[Any], first: list[Any], second: list[Any], third: list[Any]
) -> None:
    with _place(tmp_path) as place:
        *uppers, lower = layers(place, base, [first, second, third])
        made = _squashed(uppers, place / "made")
        with overlay(place / "one", [*uppers, lower]) as shown:
            wanted = seen(shown)
        with overlay(place / "other", [made, lower]) as shown:
            assert seen(shown) == wanted
        # And by halves, since that is how a long row of snapshots is squashed.
        halves = _squashed([uppers[0], _squashed(uppers[1:], place / "half")], place / "again")
        with overlay(place / "third", [halves, lower]) as shown:
            assert seen(shown) == wanted


def _squashed(stack: Sequence[Path], target: Path) -> Path:
    target.mkdir()
    with opened(*stack, target) as (*tops, write):
        squash(tops, write)
    return target


@root_only
@pytest.mark.parametrize("between", ["file", "whiteout"])
def test_a_directory_over_what_is_none_hides_what_is_below_both(tmp_path: Path, between: str) -> None:
    """As images' layers may have it; overlayfs itself marks such a directory."""
    top, middle, base = (tmp_path / name for name in ("top", "middle", "base"))
    (top / "a").mkdir(parents=True)
    (top / "a/new").write_bytes(b"new")
    middle.mkdir()
    (base / "a").mkdir(parents=True)
    (base / "a/old").write_bytes(b"old")
    if between == "file":
        (middle / "a").write_bytes(b"")
    else:
        os.mknod(middle / "a", stat.S_IFCHR, 0)
    made = _squashed([top, middle], tmp_path / "made")
    with overlay(tmp_path / "one", [top, middle, base]) as shown:
        wanted = seen(shown)
    with overlay(tmp_path / "other", [made, base]) as shown:
        assert seen(shown) == wanted
    assert sorted(wanted) == ["a", "a/new"]


def test_more_than_may_be_kept_is_refused(tmp_path: Path) -> None:
    for name in ("source", "target"):
        (tmp_path / name).mkdir()
    (tmp_path / "source/file").write_bytes(os.urandom(70_000))
    with opened(tmp_path / "source", tmp_path / "target") as (source, target):
        with pytest.raises(whole.TreeError, match="more than 65,536 bytes"):
            copy(source, target, most_bytes=65_536)
        whole.remove(target)
        assert copy(source, target, most_bytes=70_000) == 70_000


def test_directories_nested_without_end_are_refused_and_removed(tmp_path: Path) -> None:
    at = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    with opened(tmp_path) as (tree,):
        for work in (whole.digest, whole.usage):
            with pytest.raises(whole.TreeError, match="nested more than 256 deep"):
                work(tree)
        whole.remove(tree)
    assert list(tmp_path.iterdir()) == []


def test_usage_counts_a_hard_link_once_and_a_hole_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "file").write_bytes(os.urandom(8192))
    os.link(tmp_path / "file", tmp_path / "sub/again")
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(1 << 30)
    with opened(tmp_path) as (tree,):
        found = whole.usage(tree)
    assert found.entries == 3
    assert 8192 <= found.size_bytes < 32768


def test_a_shared_descriptor_may_be_read_by_two_at_once(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}").write_bytes(b"x")
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        wanted = whole.digest(descriptor)
        os.lseek(descriptor, 2, os.SEEK_SET)  # as another's reading leaves it
        assert whole.digest(descriptor) == wanted
    finally:
        os.close(descriptor)


def test_a_few_pages_spread_over_a_terabyte_are_copied_as_few(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "target").mkdir()
    with (tmp_path / "source/file").open("wb") as file:
        for at in range(0, 1 << 40, 1 << 33):
            os.pwrite(file.fileno(), b"x", at)
    with opened(tmp_path / "source", tmp_path / "target") as (source, target):
        assert copy(source, target, most_bytes=1 << 20) == 128 * 4096 - 4095  # the last page ends with the file
        assert whole.usage(target).size_bytes == whole.usage(source).size_bytes
        assert whole.digest(target) == whole.digest(source)


def test_a_check_ends_it(tmp_path: Path) -> None:
    class Enough(Exception):  # noqa: N818
        pass

    def check() -> None:
        raise Enough

    with opened(tmp_path) as (tree,):
        for work in (whole.digest, whole.usage, whole.remove):
            (tmp_path / "x").touch()
            with pytest.raises(Enough):
                work(tree, check)
