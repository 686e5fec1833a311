"""A patch says what changed in git's own words: git applies it, and the result is byte for byte what was there."""

import asyncio
import stat
import subprocess
from pathlib import Path

import pytest

from excise.errors import SpecError
from excise.patch import Side, below, section
from excise.sandbox import Sandbox
from excise.spec import Spec
from excise.substrate import Change
from excise.substrates.fake import FakeSubstrate

FILE, LINK = stat.S_IFREG | 0o644, stat.S_IFLNK | 0o777
TEXT = b"one\ntwo\nthree\n"


def applied(place: Path, name: str, before: Side | None, now: Side | None) -> None:
    """Put `before` there, apply the patch, and see `now`."""
    (place / "tree").mkdir()
    path = place / "tree" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if before is not None and stat.S_ISLNK(before.mode):
        path.symlink_to(before.data.decode())
    elif before is not None:
        path.write_bytes(before.data)
        path.chmod(stat.S_IMODE(before.mode))
    patch = section(name, before, now)
    done = subprocess.run(
        ["git", "apply", "-"], input=patch.encode(), cwd=place / "tree", capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr.decode() + patch
    if now is None:
        assert not path.exists()
    elif stat.S_ISLNK(now.mode):
        assert path.readlink() == Path(now.data.decode())
    else:
        assert (path.read_bytes(), path.stat().st_mode & 0o100) == (now.data, now.mode & 0o100)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (None, Side(FILE, TEXT)),
        (None, Side(FILE, b"")),
        (None, Side(LINK, b"to/there")),
        (Side(FILE, TEXT), None),
        (Side(FILE, b""), None),
        (Side(FILE, TEXT), Side(FILE, TEXT[:-1])),
        (Side(FILE, TEXT[:-1]), Side(FILE, TEXT)),
        (Side(FILE, TEXT[:-1]), Side(FILE, b"zero\n" + TEXT[:-1])),
        (Side(FILE, b"a\r\nb\x0cc\x0bd\xc2\x85e\n"), Side(FILE, b"a\nb\x0cX\x0bd\xc2\x85e\r\n")),
        (Side(FILE, TEXT), Side(FILE | 0o111, TEXT)),
        (Side(FILE, TEXT), Side(FILE | 0o111, b"#!/bin/sh\n")),
        (Side(FILE, bytes(range(256))), Side(FILE, bytes(range(255, -1, -1)) * 20)),
        (Side(FILE, TEXT), Side(FILE, b"\0")),
        (Side(FILE, b"\xff\n"), None),
        (Side(LINK, b"a"), Side(LINK, b"b")),
        (Side(FILE, TEXT), Side(LINK, b"b")),
        (Side(LINK, b"b"), Side(FILE, TEXT)),
    ],
)
def test_git_applies_it(tmp_path: Path, before: Side | None, now: Side | None) -> None:
    applied(tmp_path, "dir/file", before, now)


@pytest.mark.parametrize("name", ["a b", 'quo"te', "back\\slash", "grüße", "new\nline", "tab\there", "-dash"])
def test_any_name_will_do(tmp_path: Path, name: str) -> None:
    applied(tmp_path, name, Side(FILE, TEXT), Side(FILE, b"other\n"))


def test_other_rights_than_git_knows_are_no_change() -> None:
    assert section("f", Side(FILE, TEXT), Side(stat.S_IFREG | 0o640, TEXT)) == ""


def test_under_takes_what_is_below_and_names_are_relative_to_it() -> None:
    changes = [Change(path=path, kind="added") for path in ("/a", "/a/b", "/ab", "/c/a/b")]
    assert [one.path for one in below("/a/", changes)] == ["/a", "/a/b"]
    assert below("/", changes) == tuple(changes)
    with pytest.raises(SpecError, match="from the root"):
        below("a", changes)


def test_what_may_not_be_read_is_an_error_and_no_deletion() -> None:
    async def main() -> None:
        async with Sandbox(FakeSubstrate(), Spec(user="1000")) as box:
            await box.write("mine", "x")
            await box.run("chmod 000 mine")
            with pytest.raises(PermissionError):
                await box.diff(patch=True)

    asyncio.run(main())
