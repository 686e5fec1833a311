"""File actions through sh and coreutils, against a directory of this machine that is looked at from outside."""

import asyncio
import errno
import os
import signal
import stat
from pathlib import Path

import pytest

from excise.action import FileAction, FileInfo, List, MakeDir, Move, Observation, Read, Remove, Stat, Write
from excise.guestless.files import error_of, run_file

from .conftest import Run

NAMES = (
    "plain",
    "two words",
    "new\nline",
    "-dash",
    "grüße ☃",
    "it's",
    'a"b',
    "$HOME",
    "*",
    "back\\slash",
    ".hidden",
    "..x",
    "\n",
)


def do(run: Run, action: FileAction) -> Observation:
    return asyncio.run(run_file(run, action))


def failure(run: Run, action: FileAction) -> str | None:
    seen = do(run, action)
    assert not seen.ok
    return errno.errorcode.get(seen.errno or 0)


@pytest.fixture
def work(run: Run, tmp_path: Path) -> Path:
    return tmp_path / "work"


@pytest.mark.parametrize("data", [b"", b"\n", bytes(range(256)), b"no end of line", os.urandom(3 << 20)], ids=len)
def test_bytes_go_in_and_come_back(run: Run, work: Path, data: bytes) -> None:
    assert do(run, Write("file", data)).ok
    assert (work / "file").read_bytes() == data
    assert do(run, Read("file")).stdout == data


def test_any_name_will_do(run: Run, work: Path) -> None:
    for name in NAMES:
        assert do(run, Write(f"d/{name}", name.encode())).ok
        assert (work / "d" / name).read_bytes() == name.encode()
        assert do(run, Stat(f"d/{name}")).files[0].name == name
    assert [info.name for info in do(run, List("d")).files] == sorted(NAMES)
    do(run, Write("-n", b"dash"))
    assert do(run, Read("-n")).stdout == b"dash"
    for name in NAMES:
        assert do(run, Move(f"d/{name}", f"d/{name}2")).ok
        assert do(run, Remove(f"d/{name}2")).ok
    assert list((work / "d").iterdir()) == []


@pytest.mark.parametrize(
    ("offset", "length"), [(0, None), (0, 0), (10, 5), (250, None), (250, 100), (256, 1), (999, 1), (1, 1)]
)
def test_a_part_of_a_file(run: Run, work: Path, offset: int, length: int | None) -> None:
    data = bytes(range(256))
    (work / "file").write_bytes(data)
    end = None if length is None else offset + length
    assert do(run, Read("file", offset, length)).stdout == data[offset:end]


def test_append_mode_and_parents(run: Run, work: Path) -> None:
    do(run, Write("a/b/file", b"long at first"))
    do(run, Write("a/b/file", b"short", mode=0o750))
    do(run, Write("a/b/file", b", more", append=True))
    assert (work / "a/b/file").read_bytes() == b"short, more"
    assert stat.S_IMODE((work / "a/b/file").stat().st_mode) == 0o750


def test_a_listing_is_what_stat_says(run: Run, work: Path) -> None:
    (work / "file").write_bytes(b"12345")
    (work / "file").chmod(0o4640)
    os.utime(work / "file", ns=(1_700_000_000_123_456_789, 1_700_000_000_123_456_789))
    (work / "folder").mkdir()
    (work / "link").symlink_to("target with\nnewline")
    os.mkfifo(work / "pipe")
    for info in do(run, List(".")).files:
        assert info == expected(work / info.name)
        assert do(run, Stat(info.name)).files == (info,)
    assert [info.kind for info in do(run, List(".")).files] == ["file", "directory", "link", "other"]


def expected(path: Path) -> FileInfo:
    seen = path.lstat()
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
    return FileInfo(
        name=path.name,
        kind=kinds.get(stat.S_IFMT(seen.st_mode), "other"),  # pyright: ignore[reportArgumentType] - these are the words
        size_bytes=seen.st_size,
        mode=stat.S_IMODE(seen.st_mode),
        mtime_ns=seen.st_mtime_ns,
        uid=seen.st_uid,
        gid=seen.st_gid,
        target=str(path.readlink()) if path.is_symlink() else None,
    )


def test_a_large_directory_is_listed_whole(run: Run, work: Path) -> None:
    for number in range(1001):
        (work / f"{number:04}").touch()
    assert len(do(run, List(".")).files) == 1001


FAILURES = [
    (Read("gone"), "ENOENT"),
    (Read("gone/deeper"), "ENOENT"),
    (Read("dir"), "EISDIR"),
    (Read("file/x"), "ENOTDIR"),
    (Read("dangling"), "ENOENT"),
    (Read(""), "ENOENT"),
    (Read("a\0b"), "EINVAL"),
    (Write("dir", b""), "EISDIR"),
    (Write("new/", b""), "EISDIR"),
    (Write("file/x", b""), "ENOTDIR"),
    (Write("file/x/y", b""), "ENOTDIR"),
    (List("gone"), "ENOENT"),
    (List("file"), "ENOTDIR"),
    (List("file/x"), "ENOTDIR"),
    (Stat("gone"), "ENOENT"),
    (Stat("file/"), "ENOTDIR"),
    (Remove("gone"), "ENOENT"),
    (Remove("dir"), "EISDIR"),
    (Move("gone", "x"), "ENOENT"),
    (Move("file", "gone/x"), "ENOENT"),
    (Move("file", "file2/x"), "ENOTDIR"),
    (Move("file", "dir"), "EISDIR"),
    (Move("dir", "file"), "ENOTDIR"),
    (Move("dir", "full"), "ENOTEMPTY"),
    (Move("dir", "dir/inside"), "EINVAL"),
    (MakeDir("file"), "EEXIST"),
    (MakeDir("file/x"), "ENOTDIR"),
]


@pytest.mark.parametrize(("action", "name"), FAILURES, ids=str)
def test_failures_have_their_number(run: Run, work: Path, action: FileAction, name: str) -> None:
    (work / "file").write_bytes(b"x")
    (work / "file2").write_bytes(b"x")
    (work / "dir").mkdir()
    (work / "full").mkdir()
    (work / "full" / "y").write_bytes(b"y")
    (work / "dangling").symlink_to("nowhere")
    assert failure(run, action) == name
    assert (work / "file").read_bytes() == b"x"
    assert (work / "full" / "y").read_bytes() == b"y"


@pytest.mark.usefixtures("ordinary")
def test_what_permissions_refuse(run: Run, work: Path) -> None:
    (work / "locked").mkdir(mode=0o500)
    (work / "secret").write_bytes(b"x")
    (work / "secret").chmod(0)
    (work / "closed").mkdir(mode=0)
    try:
        for action in (
            Read("secret"),
            Write("secret", b""),
            Write("locked/x", b""),
            MakeDir("locked/x"),
            List("closed"),
            Read("closed/x"),
        ):
            assert failure(run, action) == "EACCES", action
    finally:
        (work / "closed").chmod(0o700)


def test_a_move_replaces_a_file_an_empty_directory_and_a_link(run: Run, work: Path) -> None:
    (work / "one").write_bytes(b"1")
    (work / "two").write_bytes(b"2")
    assert do(run, Move("one", "two")).ok
    assert (work / "two").read_bytes() == b"1"
    (work / "dir").mkdir()
    (work / "empty").mkdir()
    (work / "dir" / "x").touch()
    assert do(run, Move("dir", "empty")).ok
    assert (work / "empty" / "x").exists()
    (work / "link").symlink_to("empty")
    assert do(run, Move("two", "link")).ok
    assert not (work / "link").is_symlink()
    assert sorted(path.name for path in work.iterdir()) == ["empty", "link"]


def test_remove_takes_a_link_not_its_target(run: Run, work: Path) -> None:
    (work / "dir").mkdir()
    (work / "dir" / "x").touch()
    (work / "link").symlink_to("dir")
    assert do(run, Remove("link", recursive=True)).ok
    assert (work / "dir" / "x").exists()
    assert do(run, Remove("dir", recursive=True)).ok
    assert list(work.iterdir()) == []


def test_make_dir_is_content_with_one_that_is_there(run: Run, work: Path) -> None:
    assert do(run, MakeDir("a/b", 0o700)).ok
    assert do(run, MakeDir("a/b", 0o755)).ok
    assert stat.S_IMODE((work / "a" / "b").stat().st_mode) == 0o700


def test_what_a_signal_ended_has_no_number() -> None:
    assert error_of(64 + errno.ENOENT) == errno.ENOENT
    assert error_of(128 + signal.SIGKILL) is None
