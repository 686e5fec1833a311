"""File actions of the guest, each in a process of its own: what they do, what they refuse, and that nothing holds them up."""

import errno
import os
import shutil
import socket
import stat
import struct
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple

import pytest
from file_tool import NOBODY, FileTool
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ENTRY = struct.Struct("<IIB3xIIIQq")
names = st.binary(min_size=1, max_size=255).filter(lambda name: not {0, ord("/")} & set(name) and name not in (b".", b".."))
several_examples = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Entry(NamedTuple):
    name: bytes
    kind: int
    mode: int
    uid: int
    gid: int
    size: int
    mtime_ns: int
    target: bytes


def entries(listed: bytes) -> list[Entry]:
    found: list[Entry] = []
    while listed:
        name_bytes, target_bytes, kind, mode, uid, gid, size, mtime_ns = ENTRY.unpack_from(listed)
        name = listed[ENTRY.size : ENTRY.size + name_bytes]
        listed = listed[ENTRY.size + name_bytes :]
        found.append(Entry(name, kind, mode, uid, gid, size, mtime_ns, listed[:target_bytes]))
        listed = listed[target_bytes:]
    return found


@pytest.fixture
def shared() -> Generator[Path]:
    """A directory that every user can reach."""
    place = Path(tempfile.mkdtemp(prefix="excise-files-"))
    place.chmod(0o777)
    yield place
    shutil.rmtree(place)


def test_a_file_comes_back_byte_for_byte(file_tool: FileTool, tmp_path: Path) -> None:
    for data in (b"", b"\n", bytes(range(256)), os.urandom(300_001)):
        assert file_tool("write", "file", data, cwd=tmp_path) == (0, b"")
        assert file_tool("read", "file", cwd=tmp_path) == (0, data)


@several_examples
@given(name=names, data=st.binary())
def test_any_name_will_do(file_tool: FileTool, tmp_path: Path, name: bytes, data: bytes) -> None:
    place = Path(tempfile.mkdtemp(dir=tmp_path))
    assert file_tool("write", b"a/" + name, data, cwd=place) == (0, b"")
    assert file_tool("read", b"a/" + name, cwd=place) == (0, data)
    ((seen,),) = ([entry.name for entry in entries(file_tool("list", "a", cwd=place)[1])],)
    assert seen == name
    assert entries(file_tool("stat", b"a/" + name, cwd=place)[1])[0].name == name


def test_a_range_is_read(file_tool: FileTool, tmp_path: Path) -> None:
    data = bytes(range(256))
    (tmp_path / "file").write_bytes(data)
    for offset, length in ((10, 5), (250, 100), (256, 1), (1000, 1), (0, 0), (0, 256)):
        assert file_tool("read", "file", cwd=tmp_path, offset=offset, length=length) == (0, data[offset : offset + length])
    assert file_tool("read", "file", cwd=tmp_path, offset=250) == (0, data[250:])
    assert file_tool("read", "file", cwd=tmp_path, offset=1 << 63)[0] == errno.EINVAL


def test_write_replaces_appends_and_sets_the_mode(file_tool: FileTool, tmp_path: Path) -> None:
    file = tmp_path / "a/b/file"
    file_tool("write", "a/b/file", b"first, and long", cwd=tmp_path)
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    file_tool("write", "a/b/file", b"second", cwd=tmp_path, mode=0o666)
    file_tool("write", "a/b/file", b", more", cwd=tmp_path, flag=True)
    assert file.read_bytes() == b"second, more"
    assert stat.S_IMODE(file.stat().st_mode) == 0o666
    file_tool("write", "a/b/file", b"third", cwd=tmp_path)
    assert stat.S_IMODE(file.stat().st_mode) == 0o666
    assert file_tool("write", "new", b"x", cwd=tmp_path, flag=True) == (0, b"")


def test_errors_are_those_of_the_system(file_tool: FileTool, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_bytes(b"x")
    (tmp_path / "dangling").symlink_to("nowhere/at/all")
    wanted = [
        ("read", "gone", errno.ENOENT),
        ("read", "", errno.ENOENT),
        ("read", "full", errno.EISDIR),
        ("read", "file/below", errno.ENOTDIR),
        ("read", "dangling", errno.ENOENT),
        ("read", "x" * 5000, errno.ENAMETOOLONG),
        ("write", "full", errno.EISDIR),
        ("write", "new/", errno.EISDIR),
        ("write", "file/below", errno.ENOTDIR),
        ("write", "file/below/it", errno.ENOTDIR),
        ("write", "dangling/below", errno.ENOTDIR),
        ("write", "x" * 5000, errno.ENAMETOOLONG),
        ("list", "gone", errno.ENOENT),
        ("list", "file", errno.ENOTDIR),
        ("stat", "gone", errno.ENOENT),
        ("stat", "file/", errno.ENOTDIR),
        ("stat", "x" * 5000, errno.ENAMETOOLONG),
        ("remove", "gone", errno.ENOENT),
        ("remove", "full", errno.EISDIR),
        ("remove", "file/", errno.ENOTDIR),
        ("remove", "x" * 5000, errno.ENAMETOOLONG),
        ("make_dir", "file", errno.EEXIST),
        ("make_dir", "dangling", errno.EEXIST),
        ("make_dir", "file/below/it", errno.ENOTDIR),
        ("make_dir", "x" * 5000, errno.ENAMETOOLONG),
        ("tar", "gone", errno.ENOENT),
        ("tar", "file/below", errno.ENOTDIR),
        ("untar", "file", errno.EEXIST),
        ("move", "file", errno.ENOENT),
    ]
    got = [(operation, path, file_tool(operation, path, b"data", cwd=tmp_path)[0]) for operation, path, _ in wanted]
    assert got == wanted
    assert file_tool("move", "gone", cwd=tmp_path, target="new")[0] == errno.ENOENT
    assert file_tool("move", "file", cwd=tmp_path, target="full")[0] == errno.EISDIR
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["dangling", "file", "file", "full"]


def test_list_is_sorted_by_bytes_and_stat_shows_a_link_itself(file_tool: FileTool, tmp_path: Path) -> None:
    place = tmp_path / "d"
    place.mkdir(mode=0o750)
    for name in (b"b", b"a", b"\xff", b"\xc3\xa4", b".hidden", b"B"):
        Path(os.fsdecode(bytes(place) + b"/" + name)).write_bytes(name)
    (place / "link").symlink_to("b")
    os.mkfifo(place / "pipe")
    os.utime(place / "b", ns=(0, 1_234_567_890_123_456_789))
    (place / "b").chmod(0o4751)
    listed = entries(file_tool("list", "d", cwd=tmp_path)[1])
    wanted = sorted([b"b", b"a", b"\xff", b"\xc3\xa4", b".hidden", b"B", b"link", b"pipe"])
    assert [entry.name for entry in listed] == wanted
    by_name = {entry.name: entry for entry in listed}
    assert by_name[b"b"] == Entry(b"b", 1, 0o4751, os.getuid(), os.getgid(), 1, 1_234_567_890_123_456_789, b"")
    assert (by_name[b"link"].kind, by_name[b"link"].target) == (3, b"b")
    assert by_name[b"pipe"].kind == 4
    (itself,) = entries(file_tool("stat", "d///", cwd=tmp_path)[1])
    assert (itself.name, itself.kind, itself.mode) == (b"d", 2, 0o750)
    (link,) = entries(file_tool("stat", "d/link", cwd=tmp_path)[1])
    assert (link.name, link.target) == (b"link", b"b")
    assert entries(file_tool("stat", "/", cwd=tmp_path)[1])[0].name == b"/"


def test_a_large_directory_is_listed(file_tool: FileTool, tmp_path: Path) -> None:
    place = tmp_path / "d"
    place.mkdir()
    for number in range(5000):
        (place / f"{number:0200}").touch()
    assert [int(entry.name) for entry in entries(file_tool("list", "d", cwd=tmp_path)[1])] == list(range(5000))
    assert file_tool("remove", "d", cwd=tmp_path, flag=True) == (0, b"")
    assert not place.exists()


def test_remove_move_and_make_dir(file_tool: FileTool, tmp_path: Path) -> None:
    assert file_tool("make_dir", "one//two/", cwd=tmp_path, mode=0o777) == (0, b"")
    assert stat.S_IMODE((tmp_path / "one").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "one/two").stat().st_mode) == 0o777
    assert file_tool("make_dir", "one/two", cwd=tmp_path, mode=0o700) == (0, b"")
    assert stat.S_IMODE((tmp_path / "one/two").stat().st_mode) == 0o777
    (tmp_path / "one/two/file").write_bytes(b"moved")
    (tmp_path / "target").write_bytes(b"replaced")
    assert file_tool("move", "one/two/file", cwd=tmp_path, target="target") == (0, b"")
    assert (tmp_path / "target").read_bytes() == b"moved"
    assert file_tool("remove", "target", cwd=tmp_path) == (0, b"")
    assert file_tool("remove", "one", cwd=tmp_path, flag=True) == (0, b"")
    assert list(tmp_path.iterdir()) == []


def test_remove_follows_no_link(file_tool: FileTool, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_bytes(b"kept")
    (tmp_path / "link").symlink_to("kept")
    (tmp_path / "tree/below").mkdir(parents=True)
    (tmp_path / "tree/below/link").symlink_to(kept)
    (tmp_path / "tree/up").symlink_to("..")
    assert file_tool("remove", "link/", cwd=tmp_path, flag=True)[0] == errno.ENOTDIR
    assert file_tool("remove", "tree", cwd=tmp_path, flag=True) == (0, b"")
    assert file_tool("remove", "link", cwd=tmp_path, flag=True) == (0, b"")
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))] == ["kept", "kept/file"]


def test_the_directory_one_is_in_is_not_emptied(file_tool: FileTool, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here/file").touch()
    for path in (".", "../here/.", "..", "./"):
        assert file_tool("remove", path, cwd=tmp_path / "here", flag=True)[0] == errno.EINVAL
    assert (tmp_path / "here/file").exists()


def test_a_very_deep_tree_is_removed(file_tool: FileTool, tmp_path: Path) -> None:
    """Deeper than any path, any stack of descriptors and any recursion that is safe."""
    before = Path.cwd()
    (tmp_path / "top").mkdir()
    os.chdir(tmp_path / "top")
    try:
        for _ in range(3000):
            os.mkdir("x" * 50)  # noqa: PTH102 - its path is too long to be said
            os.chdir("x" * 50)
    finally:
        os.chdir(before)
    assert file_tool("tar", "top", cwd=tmp_path)[0] == errno.ENAMETOOLONG
    assert file_tool("remove", "top", cwd=tmp_path, flag=True) == (0, b"")
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_file_holds_nobody_up(file_tool: FileTool, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "socket"))
    with listening:
        for path in ("fifo", "link", "socket", "/dev/ptmx", "/dev/tty", "/proc/self/fd/0"):
            assert file_tool("read", path, cwd=tmp_path, length=10)[0] == errno.EINVAL, path
            assert file_tool("write", path, b"x", cwd=tmp_path)[0] == errno.EINVAL, path
    if os.getuid() == 0:
        os.mknod(tmp_path / "terminal", stat.S_IFCHR | 0o600, os.makedev(4, 3))  # its minor number is that of null
        assert file_tool("read", "terminal", cwd=tmp_path, length=10)[0] == errno.EINVAL
    assert file_tool("read", "/dev/zero", cwd=tmp_path)[0] == errno.EINVAL  # it has no end
    assert file_tool("read", "/dev/zero", cwd=tmp_path, length=100_000) == (0, bytes(100_000))
    assert file_tool("read", "/dev/null", cwd=tmp_path) == (0, b"")
    assert file_tool("write", "/dev/null", b"x" * 100_000, cwd=tmp_path) == (0, b"")
    assert file_tool("write", "/dev/full", b"x", cwd=tmp_path)[0] == errno.ENOSPC
    assert file_tool("read", "/proc/self/status", cwd=tmp_path)[1].startswith(b"Name:")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_another_users_files_are_refused(file_tool: FileTool, shared: Path) -> None:
    (shared / "mine").mkdir(mode=0o700)
    (shared / "mine/file").write_bytes(b"secret")
    (shared / "locked").touch(mode=0o600)
    for operation, path in (("read", "locked"), ("write", "locked"), ("list", "mine"), ("stat", "mine/file"), ("tar", "mine")):
        assert file_tool(operation, path, b"x", cwd=shared, user=NOBODY)[0] == errno.EACCES, operation
    assert file_tool("make_dir", "mine/below/it", cwd=shared, user=NOBODY)[0] == errno.EACCES
    assert file_tool("remove", "mine", cwd=shared, user=NOBODY, flag=True)[0] == errno.EACCES
    assert file_tool("untar", "mine", cwd=shared, user=NOBODY) == (0, b"")  # an empty archive changes nothing
    assert (shared / "mine/file").read_bytes() == b"secret"


def test_a_reader_that_went_away_ends_it(file_tool: FileTool, tmp_path: Path) -> None:
    process = file_tool.start("read", "/dev/zero", cwd=tmp_path, length=1 << 40)
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        assert process.stdout.read(10) == bytes(10)
        process.stdout.close()
        assert process.wait(30) == errno.EPIPE


def test_connect_relays_both_ways_and_passes_on_each_end(file_tool: FileTool, tmp_path: Path) -> None:
    data = os.urandom(1_000_000)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        process = file_tool.start("connect", "-", cwd=tmp_path, port=server.getsockname()[1])
        with process:
            assert process.stdin is not None
            assert process.stdout is not None
            peer, _ = server.accept()
            with peer:
                peer.settimeout(30)
                assert process.stderr is not None
                assert len(process.stderr.read(1)) == 1  # that it stands
                peer.sendall(b"hello")
                assert process.stdout.read(5) == b"hello"
                process.stdin.write(b"question")
                process.stdin.close()
                with peer.makefile("rb") as received:
                    assert received.read() == b"question"  # to its end
                peer.sendall(data)
                peer.shutdown(socket.SHUT_WR)
                assert process.stdout.read() == data
            assert process.wait(30) == 0
    assert file_tool("connect", "-", cwd=tmp_path, port=1)[0] == errno.ECONNREFUSED


def test_a_connection_that_is_reset_ends_though_nobody_closed_stdin(file_tool: FileTool, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        process = file_tool.start("connect", "-", cwd=tmp_path, port=server.getsockname()[1])
        with process:
            peer, _ = server.accept()
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.close()
            assert process.wait(30) == errno.ECONNRESET


def test_a_peer_that_closed_ends_the_connection(file_tool: FileTool, tmp_path: Path) -> None:
    """Nobody can tell it from one that fell silent and still reads; a reader that waits for its end must see it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        process = file_tool.start("connect", "-", cwd=tmp_path, port=server.getsockname()[1])
        with process:
            assert process.stdout is not None
            peer, _ = server.accept()
            with peer:
                peer.sendall(b"goodbye" * 100_000)
            assert process.stdout.read() == b"goodbye" * 100_000
            assert process.wait(30) == 0


def names_in(place: str) -> list[str]:
    return sorted(path.name for path in Path(place).iterdir())


@pytest.mark.skipif(
    Path("/dev/shm").stat().st_dev == Path(tempfile.gettempdir()).stat().st_dev, reason="there is no second file system"
)
def test_a_move_to_another_file_system_is_a_copy(file_tool: FileTool, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as away:
        tree = tmp_path / "tree"
        (tree / "below").mkdir(parents=True)
        (tree / "below/file").write_bytes(b"content" * 100_000)
        (tree / "below/link").symlink_to("file")
        (tree / "below").chmod(0o500)
        os.utime(tree / "below/file", ns=(0, 1_234_567_890_123_456_789))
        assert file_tool("move", "tree", cwd=tmp_path, target=f"{away}/new") == (0, b"")
        moved = Path(away) / "new/below"
        assert (moved / "file").read_bytes() == b"content" * 100_000
        assert (moved / "file").stat().st_mtime_ns == 1_234_567_890_123_456_789
        assert (moved / "link").readlink() == Path("file")
        assert stat.S_IMODE(moved.stat().st_mode) == 0o500
        moved.chmod(0o700)
        assert (list(tmp_path.iterdir()), names_in(away)) == ([], ["new"])
        (tmp_path / "file").write_bytes(b"a file")
        assert file_tool("move", "file", cwd=tmp_path, target=f"{away}/new")[0] == errno.EISDIR
        assert ((tmp_path / "file").read_bytes(), names_in(away)) == (b"a file", ["new"])  # as it was
        assert file_tool("move", "file", cwd=tmp_path, target=f"{away}/gone/new")[0] == errno.ENOENT
        (Path(away) / "other").write_bytes(b"replaced")
        assert file_tool("move", "file", cwd=tmp_path, target=f"{away}/other") == (0, b"")
        assert (Path(away) / "other").read_bytes() == b"a file"
        assert list(tmp_path.iterdir()) == []
