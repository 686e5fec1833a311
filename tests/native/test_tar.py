"""Trees in and out as tar streams, against Python's own reader and writer, and against archives made to do harm."""

import errno
import io
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from file_tool import NOBODY, FileTool
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
ROOT = os.getuid() == 0
only_as_root = pytest.mark.skipif(not ROOT, reason="only root has owners to give")
part = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=80).filter(
    lambda name: name not in (".", "..") and len(name.encode()) <= 255
)
several_examples = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def member(name: str, kind: bytes = tarfile.REGTYPE, data: bytes = b"", **more: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.uid, info.gid = kind, len(data), os.getuid(), os.getgid()
    for key, value in more.items():
        setattr(info, key, value)
    return info, data


def archive(*members: tuple[tarfile.TarInfo, bytes], format: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """What no archive may change: a directory beside the one that is unpacked into."""
    place = tmp_path / "outside"
    place.mkdir()
    (place / "file").write_bytes(b"kept")
    return place


@pytest.fixture
def shared() -> Generator[Path]:
    place = Path(tempfile.mkdtemp(prefix="excise-tar-"))
    place.chmod(0o777)
    yield place
    shutil.rmtree(place)


def facts(place: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Kind and mode, time in seconds, owner, and content of all below a directory."""
    found: dict[str, tuple[int, int, int, bytes]] = {}
    for path in sorted(place.rglob("*")):
        seen = path.lstat()
        data = path.read_bytes() if stat.S_ISREG(seen.st_mode) else b""
        data = os.fsencode(path.readlink()) if path.is_symlink() else data
        found[str(path.relative_to(place))] = (seen.st_mode, int(seen.st_mtime), seen.st_uid, data)
    return found


def make_tree(place: Path) -> None:
    for name in ("bin", "empty", "long/" + "d" * 120):
        (place / name).mkdir(parents=True)
    for name, mode in (("bin/tool", 0o755), ("private", 0o600), ("two words ☃", 0o666), ("long/" + "x" * 200, 0o444)):
        (place / name).write_bytes(name.encode() * 500)
        (place / name).chmod(mode)
    (place / "block").write_bytes(bytes(512))
    (place / "link").symlink_to("bin/tool")
    (place / "far").symlink_to("/nowhere/" + "y" * 200)
    os.mkfifo(place / "fifo", 0o640)
    os.link(place / "bin/tool", place / "other name")
    os.utime(place / "private", (0, 1_000_000_000))
    os.utime(place / "block", (0, -5))
    os.utime(place / "empty", (0, 1_234_567_890))
    (place / "empty").chmod(0o500)


def test_what_goes_out_comes_in_the_same(file_tool: FileTool, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    make_tree(tmp_path / "tree")
    error, packed = file_tool("tar", "tree", cwd=tmp_path)
    assert error == 0
    assert file_tool("untar", "copy/of/it", packed, cwd=tmp_path) == (0, b"")
    copy = tmp_path / "copy/of/it/tree"
    assert facts(copy) == facts(tmp_path / "tree")
    assert (copy / "bin/tool").stat().st_ino == (copy / "other name").stat().st_ino
    assert file_tool("untar", "copy/of/it", packed, cwd=tmp_path) == (0, b"")  # over what is there
    assert facts(copy) == facts(tmp_path / "tree")


def test_python_reads_what_goes_out(file_tool: FileTool, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    make_tree(tmp_path / "tree")
    for said in ("tree", f"{tmp_path}/tree", "tree//", "tree/bin/.."):
        _, packed = file_tool("tar", said, cwd=tmp_path)
        with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
            assert tar.getnames()[:3] == ["tree", "tree/bin", "tree/bin/tool"], said
            into = Path(tempfile.mkdtemp(dir=tmp_path))
            tar.extraction_filter = lambda info, _: info  # every Python knows the attribute, not every one the argument
            tar.extractall(into)  # noqa: S202 - we wrote it
        for path in (into / "tree", tmp_path / "tree"):
            for link in ("link", "far"):
                os.utime(path / link, (0, 0), follow_symlinks=False)  # Python sets no link's time
        assert facts(into / "tree") == facts(tmp_path / "tree")


def test_one_file_or_link_goes_out_by_its_name(file_tool: FileTool, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    for name, kind in (("file", tarfile.REGTYPE), ("link", tarfile.SYMTYPE)):
        with tarfile.open(fileobj=io.BytesIO(file_tool("tar", name, cwd=tmp_path)[1])) as tar:
            assert [(info.name, info.type) for info in tar] == [(name, kind)]


def test_gnu_tar_reads_and_writes_the_same(file_tool: FileTool, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    make_tree(tmp_path / "tree")
    _, packed = file_tool("tar", "tree", cwd=tmp_path)
    (tmp_path / "theirs").mkdir()
    subprocess.run(["tar", "-xpf", "-", "-C", "theirs"], input=packed, cwd=tmp_path, check=True, timeout=60)
    assert facts(tmp_path / "theirs/tree") == facts(tmp_path / "tree")
    for number, theirs in enumerate(("gnu", "pax", "oldgnu")):
        made = subprocess.run(
            ["tar", f"--format={theirs}", "-cf", "-", "tree"], cwd=tmp_path, check=True, timeout=60, capture_output=True
        )
        assert file_tool("untar", str(number), made.stdout, cwd=tmp_path) == (0, b"")
        assert facts(tmp_path / str(number) / "tree") == facts(tmp_path / "tree"), theirs


@several_examples
@given(
    files=st.dictionaries(st.lists(part, min_size=1, max_size=4).map("/".join), st.binary(max_size=2000), max_size=8),
    format=st.sampled_from((tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)),
)
def test_python_writes_what_comes_in(file_tool: FileTool, tmp_path: Path, files: dict[str, bytes], format: int) -> None:
    files = {name: data for name, data in files.items() if not any(other.startswith(name + "/") for other in files)}
    place = Path(tempfile.mkdtemp(dir=tmp_path))
    packed = archive(*(member(name, data=data, mode=0o640) for name, data in files.items()), format=format)
    assert file_tool("untar", "into", packed, cwd=place) == (0, b"")
    found = {name: data for name, (mode, _, _, data) in facts(place / "into").items() if stat.S_ISREG(mode)}
    assert found == files
    _, again = file_tool("tar", "into", cwd=place)
    with tarfile.open(fileobj=io.BytesIO(again)) as tar:
        back = {info.name: tar.extractfile(info).read() for info in tar if info.isreg()}  # pyright: ignore[reportOptionalMemberAccess]
        names = [info.name.encode() + b"/" * info.isdir() for info in tar]
    assert back == {f"into/{name}": data for name, data in files.items()}
    assert names == sorted(names, key=lambda name: name.rstrip(b"/").split(b"/"))


def test_modes_times_and_the_directory_itself(file_tool: FileTool, tmp_path: Path) -> None:
    packed = archive(
        member("./", tarfile.DIRTYPE, mode=0o750, mtime=1_000_000_000),
        member("./shut", tarfile.DIRTYPE, mode=0o500, mtime=1_100_000_000.25),
        member("./shut/file", data=b"x", mode=0o606, mtime=-1.5),
        member("/absolute", data=b"x"),
        member("a/./b//c", data=b"x"),
    )
    assert file_tool("untar", "into", packed, cwd=tmp_path) == (0, b"")
    top, shut, file = (tmp_path / "into" / name for name in (".", "shut", "shut/file"))
    assert (stat.S_IMODE(top.stat().st_mode), top.stat().st_mtime) == (0o750, 1_000_000_000)
    assert (stat.S_IMODE(shut.stat().st_mode), shut.stat().st_mtime) == (0o500, 1_100_000_000.25)
    assert (stat.S_IMODE(file.stat().st_mode), file.stat().st_mtime) == (0o606, -1.5)
    assert sorted(path.name for path in top.iterdir()) == ["a", "absolute", "shut"]
    assert (top / "a/b/c").read_bytes() == b"x"


def test_an_empty_archive_makes_the_directory(file_tool: FileTool, tmp_path: Path) -> None:
    for number, packed in enumerate((b"", bytes(512), bytes(1024), bytes(10240))):
        assert file_tool("untar", f"a/{number}", packed, cwd=tmp_path) == (0, b"")
        assert (tmp_path / f"a/{number}").is_dir()


def test_a_member_replaces_what_is_there(file_tool: FileTool, tmp_path: Path, outside: Path) -> None:
    into = tmp_path / "into"
    into.mkdir()
    (into / "was link").symlink_to(outside / "file")
    (into / "was directory").mkdir()
    (into / "was file").write_bytes(b"old")
    (into / "real").mkdir()
    (into / "to real").symlink_to("real")
    (into / "away").symlink_to(outside)
    (into / "full").mkdir()
    (into / "full/file").touch()
    packed = archive(
        member("was link", data=b"new"),
        member("was directory", data=b"new"),
        member("was file", tarfile.DIRTYPE, mode=0o755),
        member("to real", tarfile.DIRTYPE, mode=0o755),
        member("to real/file", data=b"new"),
        member("away", tarfile.DIRTYPE, mode=0o755),
        member("away/file", data=b"new"),
    )
    assert file_tool("untar", "into", packed, cwd=tmp_path) == (0, b"")
    assert (into / "was link").read_bytes() == (into / "was directory").read_bytes() == b"new"
    assert (into / "was file").is_dir()
    assert (into / "to real").is_symlink()
    assert (into / "real/file").read_bytes() == b"new"
    assert not (into / "away").is_symlink()
    assert file_tool("untar", "into", archive(member("full", data=b"new")), cwd=tmp_path)[0] == errno.ENOTEMPTY
    assert facts(outside) == facts(outside) | {"file": (*facts(outside)["file"][:3], b"kept")}


def links_out(outside: Path) -> dict[str, list[tuple[tarfile.TarInfo, bytes]]]:
    away = str(outside)
    return {
        "dots": [member("../outside/file", data=b"harm")],
        "dots within": [member("a/../../outside/file", data=b"harm")],
        "absolute link": [member("d", tarfile.SYMTYPE, linkname=away), member("d/file", data=b"harm")],
        "relative link": [member("d", tarfile.SYMTYPE, linkname="../outside"), member("d/file", data=b"harm")],
        "link to a link": [
            member("a", tarfile.SYMTYPE, linkname=".."),
            member("b", tarfile.SYMTYPE, linkname="a/outside"),
            member("b/file", data=b"harm"),
        ],
        "directory through a link": [member("d", tarfile.SYMTYPE, linkname=away), member("d/new", tarfile.DIRTYPE)],
        "link through a link": [
            member("d", tarfile.SYMTYPE, linkname=away),
            member("d/new", tarfile.SYMTYPE, linkname="file"),
        ],
        "magic link": [member("d", tarfile.SYMTYPE, linkname="/proc/self/cwd/outside"), member("d/file", data=b"harm")],
        "hard link out": [member("h", tarfile.LNKTYPE, linkname="../outside/file"), member("h", data=b"harm")],
        "hard link through a link": [
            member("d", tarfile.SYMTYPE, linkname=away),
            member("h", tarfile.LNKTYPE, linkname="d/file"),
        ],
        "long dots": [member("a/" * 100 + "../" * 101 + "outside/file", data=b"harm")],
    }


HOSTILE = sorted(links_out(Path("/")))


@pytest.mark.parametrize("which", HOSTILE)
def test_nothing_is_made_outside(file_tool: FileTool, tmp_path: Path, outside: Path, which: str) -> None:
    before = facts(outside)
    packed = archive(*links_out(outside)[which])
    error, _ = file_tool("untar", "into", packed, cwd=tmp_path)
    assert error in (errno.EINVAL, errno.EXDEV, errno.ELOOP), os.strerror(error)
    assert facts(outside) == before
    assert (outside / "file").stat().st_nlink == 1


def test_links_out_do_no_harm_by_themselves(file_tool: FileTool, tmp_path: Path, outside: Path) -> None:
    """A link may lead anywhere; what replaces it replaces the link."""
    before = facts(outside)
    packed = archive(
        member("link", tarfile.SYMTYPE, linkname=str(outside / "file")),
        member("link", data=b"a file now"),
        member("twin", tarfile.LNKTYPE, linkname="link"),
        member("twin", tarfile.LNKTYPE, linkname="link"),
        member("link", tarfile.LNKTYPE, linkname="link"),
        member("dir", tarfile.SYMTYPE, linkname=str(outside)),
        member("dir", tarfile.DIRTYPE, mode=0o700, mtime=5),
    )
    assert file_tool("untar", "into", packed, cwd=tmp_path) == (0, b"")
    assert facts(outside) == before
    assert (tmp_path / "into/twin").read_bytes() == b"a file now"
    assert (tmp_path / "into/link").stat().st_nlink == 2
    assert not (tmp_path / "into/dir").is_symlink()


def test_a_directory_that_became_a_link_is_not_written_through(file_tool: FileTool, tmp_path: Path, outside: Path) -> None:
    """The directory of the last member is kept open for the next."""
    before = facts(outside)
    packed = archive(
        member("d", tarfile.DIRTYPE, mode=0o755),
        member("d/x", data=b"1"),
        member("e", tarfile.DIRTYPE, mode=0o777, mtime=7),
        member("e", tarfile.SYMTYPE, linkname=str(outside)),
        member("e/file", data=b"harm"),
    )
    assert file_tool("untar", "into", packed, cwd=tmp_path)[0] == errno.EXDEV
    assert facts(outside) == before


def header(**changes: bytes) -> bytes:
    """A header with fields replaced, and a checksum that is right unless one is given."""
    places = {"name": (0, 100), "mode": (100, 8), "uid": (108, 8), "size": (124, 12), "mtime": (136, 12), "kind": (156, 1)}
    block = bytearray(member("file")[0].tobuf(tarfile.USTAR_FORMAT))
    for key, value in changes.items():
        if key != "checksum":
            at, length = places[key]
            block[at : at + length] = value.ljust(length, b"\0")
    block[148:156] = b" " * 8
    block[148:156] = changes.get("checksum", b"%06o\0 " % sum(block))
    return bytes(block)


def extension(kind: bytes, data: bytes) -> bytes:
    return header(kind=kind, size=b"%011o" % len(data)) + data + bytes(-len(data) % 512)


WHOLE = archive(member("file", data=b"x" * 1000))
MALFORMED = {
    "no tar": b"this is no archive" * 100,
    "compressed": b"\x1f\x8b\x08" + bytes(600),
    "checksum": header(checksum=b"000000\0 ") + bytes(1024),
    "checksum of letters": header(checksum=b"abcdef\0 ") + bytes(1024),
    "size of letters": header(size=b"12x") + bytes(1024),
    "negative size": header(size=b"\xff" * 12) + bytes(1024),
    "huge size": header(size=b"\x80" + b"\xff" * 11) + bytes(1024),
    "size beyond the end": header(size=b"77777777777") + bytes(1024),
    "64-bit size": header(size=b"\x80\0\0\0\x7f" + b"\xff" * 7) + bytes(1024),
    "mtime too large": header(mtime=b"\x80" + b"\x7f" * 11) + bytes(1024),
    "cut in a header": WHOLE[:300],
    "cut in data": WHOLE[:900],
    "cut in padding": WHOLE[:1530],
    "no end": WHOLE[:1536],
    "no name": header(name=b"") + bytes(1024),
    "only dots": header(name=b"./.") + bytes(1024),
    "hard link to nothing": header(kind=b"1") + bytes(1024),
    "link to nothing": header(kind=b"2") + bytes(1024),
    "huge extension": header(kind=b"x", size=b"00100000000") + bytes(1024),
    "endless long name": header(kind=b"L", size=b"77777777777") + bytes(1024),
    "pax without length": extension(b"x", b"path=x\n") + header(),
    "pax length too long": extension(b"x", b"99 path=x\n") + header(),
    "pax length too short": extension(b"x", b"3 path=x\n") + header(),
    "pax length zero": extension(b"x", b"0 path=x\n") + header(),
    "pax length negative": extension(b"x", b"-9 path=x\n") + header(),
    "pax length overflows": extension(b"x", b"99999999999999999999999 path=x\n") + header(),
    "pax without equals": extension(b"x", b"9 path x\n") + header(),
    "pax without newline": extension(b"x", b"9 path=xx") + header(),
    "pax with a zero": extension(b"x", b"10 path=\0x\n") + header(),
    "pax size negative": extension(b"x", b"11 size=-5\n") + header(),
    "pax size of letters": extension(b"x", b"10 size=a\n") + header(),
    "pax time of letters": extension(b"x", b"13 mtime=1.x\n") + header(),
    "pax dots": extension(b"x", b"14 path=../xy\n") + header() + bytes(1024),
}


@pytest.mark.parametrize("which", sorted(MALFORMED))
def test_a_malformed_archive_is_told(file_tool: FileTool, tmp_path: Path, which: str) -> None:
    assert file_tool("untar", "into", MALFORMED[which], cwd=tmp_path)[0] == errno.EINVAL


def test_names_that_are_too_long_and_kinds_that_are_not_known(file_tool: FileTool, tmp_path: Path) -> None:
    wanted = {
        extension(b"L", b"x" * 5000) + header(): errno.ENAMETOOLONG,
        extension(b"x", b"5010 path=" + b"y" * 4999 + b"\n") + header(): errno.ENAMETOOLONG,
        extension(b"L", b"x" * 300) + header() + bytes(1024): errno.ENAMETOOLONG,
        header(kind=b"S") + bytes(1024): errno.ENOTSUP,
        header(kind=b"Q") + bytes(1024): errno.ENOTSUP,
        extension(b"x", b"22 GNU.sparse.major=1\n") + header() + bytes(1024): errno.ENOTSUP,
    }
    assert {packed: file_tool("untar", "into", packed, cwd=tmp_path)[0] for packed in wanted} == wanted


def test_pax_headers_say_more_than_the_header(file_tool: FileTool, tmp_path: Path) -> None:
    packed = (
        extension(b"g", b"17 comment=hello\n18 mtime=123456.5\n")
        + extension(b"x", b"16 path=renamed\n9 size=3\n12 uid=1000\n7 uid=\n")
        + header()
        + b"abc".ljust(512, b"\0")
        + header(name=b"plain", size=b"2")
        + b"xy".ljust(512, b"\0")
        + bytes(1024)
    )
    assert file_tool("untar", "into", packed, cwd=tmp_path) == (0, b"")
    into = tmp_path / "into"
    assert {path.name: path.read_bytes() for path in into.iterdir()} == {"renamed": b"abc", "plain": b"xy"}
    assert (into / "plain").stat().st_mtime == 123456.5


@only_as_root
def test_root_keeps_owners_and_others_do_not(file_tool: FileTool, shared: Path) -> None:
    packed = archive(
        member("d", tarfile.DIRTYPE, mode=0o755, uid=1234, gid=2345),
        member("d/suid", data=b"x", mode=0o4755, uid=1234, gid=2345),
        member("d/unmapped", data=b"x", mode=0o4755, uid=(1 << 32) - 1, gid=2345),
        member("l", tarfile.SYMTYPE, linkname="d", uid=1234, gid=2345),
    )
    assert file_tool("untar", "root", packed, cwd=shared) == (0, b"")
    owners = [((path := shared / "root" / name).lstat().st_uid, path.lstat().st_gid) for name in ("d", "d/suid", "l")]
    assert owners == [(1234, 2345)] * 3
    assert stat.S_IMODE((shared / "root/d/suid").stat().st_mode) == 0o4755
    assert ((shared / "root/d/unmapped").stat().st_uid, (shared / "root/d/unmapped").stat().st_mode & 0o7777) == (0, 0o755)
    assert file_tool("untar", "other", packed, cwd=shared, user=NOBODY) == (0, b"")
    assert (shared / "other/d/suid").stat().st_uid == NOBODY
    assert stat.S_IMODE((shared / "other/d/suid").stat().st_mode) == 0o755
    device = archive(member("null", tarfile.CHRTYPE, devmajor=1, devminor=3))
    assert file_tool("untar", "other", device, cwd=shared, user=NOBODY)[0] == errno.EPERM


@only_as_root
def test_a_directory_of_somebody_else_stays_as_it_is(file_tool: FileTool, shared: Path) -> None:
    packed = archive(member(".", tarfile.DIRTYPE, mode=0o700), member("file", data=b"x"))
    assert file_tool("untar", ".", packed, cwd=shared, user=NOBODY) == (0, b"")
    assert stat.S_IMODE(shared.stat().st_mode) == 0o777
    assert (shared / "file").read_bytes() == b"x"


def test_a_file_whose_size_changes_while_it_is_read_keeps_the_archive_whole(file_tool: FileTool, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    big = tmp_path / "d/big"
    big.write_bytes(b"x" * 8_000_000)
    (tmp_path / "d/last").write_bytes(b"after")
    process = file_tool.start("tar", "d", cwd=tmp_path)
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        first = process.stdout.read(2000)  # it has begun, and the pipe holds it up
        os.truncate(big, 100)
        packed = first + process.stdout.read()
        assert process.wait(30) == 0
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        sizes = {info.name: info.size for info in tar}
        assert sizes == {"d": 0, "d/big": 8_000_000, "d/last": 5}
        last = tar.extractfile("d/last")
        assert last is not None
        assert last.read() == b"after"


def test_large_sizes_and_strange_owners_are_written(file_tool: FileTool, tmp_path: Path) -> None:
    """Only the header is looked at: the file is a hole of 9 GiB."""
    with (tmp_path / "hole").open("wb") as hole:
        hole.truncate(9 << 30)
    if ROOT:
        os.chown(tmp_path / "hole", 3_000_000_000, 4_000_000_000)
    process = file_tool.start("tar", "hole", cwd=tmp_path)
    with process:
        assert process.stdout is not None
        info = tarfile.TarInfo.frombuf(process.stdout.read(512), "utf-8", "strict")
        process.kill()
    assert info.size == 9 << 30
    assert not ROOT or (info.uid, info.gid) == (3_000_000_000, 4_000_000_000)
