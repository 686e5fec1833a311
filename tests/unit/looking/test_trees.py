"""Unpacking an adversary's tar: nothing is written outside of the target, and nothing of ours is written through."""

import io
import os
import stat
import tarfile
from pathlib import Path

import pytest

from excise.errors import SpecError
from excise.looking.trees import Unpacker, pack


def entry(name: str, kind: bytes = tarfile.REGTYPE, *, link: str = "", mode: int = 0o644, data: bytes = b"") -> tuple:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode, member.size = kind, link, mode, len(data)
    return member, data


def made(*entries: tuple) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for member, data in entries:
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def unpacked(target: Path, tar: bytes, rename: str | None = None) -> list[str]:
    skipped: list[str] = []
    with Unpacker(str(target), rename=rename, skipped=skipped.append) as unpacker:
        unpacker.unpack(io.BytesIO(tar))
    return skipped


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "mine").write_text("mine")
    place = tmp_path / "target"
    place.mkdir()
    return place


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil", "a/../evil"])
def test_a_name_that_leads_out_is_refused(target: Path, name: str) -> None:
    with pytest.raises(SpecError, match="leads out of the target"):
        unpacked(target, made(entry(name, data=b"x")))
    assert not (target.parent / "evil").exists()
    assert not Path("/evil").exists()


def test_a_link_of_the_stream_is_not_followed(target: Path) -> None:
    outside = str(target.parent / "outside")
    skipped = unpacked(
        target,
        made(
            entry("way", tarfile.SYMTYPE, link=outside),
            entry("way/mine", data=b"theirs"),
            entry("way/new", data=b"theirs"),
            entry("way/made", tarfile.DIRTYPE),
        ),
    )
    assert len(skipped) == 3
    assert {path.name: path.read_text() for path in (target.parent / "outside").iterdir()} == {"mine": "mine"}
    assert (target / "way").readlink() == Path(outside)


def test_a_link_that_was_there_is_replaced_and_not_written_through(target: Path) -> None:
    (target / "file").symlink_to(target.parent / "outside" / "mine")
    assert unpacked(target, made(entry("file", data=b"theirs"))) == []
    assert (target / "file").read_text() == "theirs"
    assert not (target / "file").is_symlink()
    assert (target.parent / "outside" / "mine").read_text() == "mine"


def test_a_hard_link_of_ours_is_not_written_through(target: Path) -> None:
    os.link(target.parent / "outside" / "mine", target / "file")
    unpacked(target, made(entry("file", data=b"theirs")))
    assert (target.parent / "outside" / "mine").read_text() == "mine"


def test_a_hard_link_leads_to_files_of_the_stream_alone(target: Path) -> None:
    (target / "ours").write_text("ours")
    skipped = unpacked(
        target, made(entry("a", data=b"x"), entry("b", tarfile.LNKTYPE, link="a"), entry("c", tarfile.LNKTYPE, link="ours"))
    )
    assert (target / "a").stat().st_ino == (target / "b").stat().st_ino
    assert not (target / "c").exists()
    assert skipped == ["c: a hard link to what was not copied"]
    with pytest.raises(SpecError, match="leads out"):
        unpacked(target, made(entry("d", tarfile.LNKTYPE, link="../outside/mine")))


def test_a_hard_link_over_a_link_is_not_followed_later(target: Path) -> None:
    """A name that was a file of the stream and then became a link to our file is no source of a hard link any more."""
    mine = str(target.parent / "outside" / "mine")
    unpacked(
        target,
        made(
            entry("a", data=b"x"),
            entry("a", tarfile.SYMTYPE, link=mine),
            entry("b", tarfile.LNKTYPE, link="a"),
            entry("b", data=b"theirs"),
        ),
    )
    assert Path(mine).read_text() == "mine"


def test_devices_and_lent_rights_do_not_come(target: Path) -> None:
    skipped = unpacked(
        target,
        made(
            entry("null", tarfile.CHRTYPE),
            entry("pipe", tarfile.FIFOTYPE),
            entry("su", mode=0o6755),
            entry("d", tarfile.DIRTYPE, mode=0),
        ),
    )
    assert len(skipped) == 2
    assert stat.S_IMODE((target / "su").stat().st_mode) == 0o755
    assert stat.S_IMODE((target / "d").stat().st_mode) == 0o700
    assert sorted(path.name for path in target.iterdir()) == ["d", "su"]


def test_only_what_was_asked_for_takes_the_name(target: Path) -> None:
    with pytest.raises(SpecError, match="not what was asked for"):
        unpacked(target, made(entry("a", data=b"x"), entry("b", data=b"y")), rename="wanted")
    assert (target / "wanted").read_bytes() == b"x"
    assert not (target / "b").exists()


def test_a_stream_that_breaks_off_is_told(target: Path) -> None:
    with pytest.raises(SpecError, match="no whole tar stream"):
        unpacked(target, made(entry("a", data=b"x" * 5000))[:2000])


def test_what_is_packed_unpacks_the_same(target: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "program").write_bytes(b"\0\xff" * 70000)
    (source / "deep" / "program").chmod(0o750)
    (source / "na\nme").symlink_to("deep/program")
    buffer = io.BytesIO()
    pack(str(source), "copy", buffer, uid=12, gid=34)
    with tarfile.open(fileobj=io.BytesIO(buffer.getvalue())) as tar:
        assert {(member.uid, member.gid) for member in tar} == {(12, 34)}
    assert unpacked(target, buffer.getvalue(), rename="here") == []
    assert (target / "here" / "deep" / "program").read_bytes() == b"\0\xff" * 70000
    assert stat.S_IMODE((target / "here" / "deep" / "program").stat().st_mode) == 0o750
    assert (target / "here" / "na\nme").readlink() == Path("deep/program")
