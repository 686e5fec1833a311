"""What differs between two layers over one image: both as runsc writes them."""

import io
import tarfile
from pathlib import Path

import pytest

from excise.substrates.gvisor.changes import above, compared

OPAQUE = {"SCHILY.xattr.trusted.overlay.opaque": "y"}
Member = tuple[str, bytes | str | None]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An image: two files in a directory, and a link that leads out of it."""
    made = tmp_path / "root"
    (made / "etc/old").mkdir(parents=True)
    (made / "etc/hosts").write_bytes(b"hosts\n")
    (made / "etc/hosts").chmod(0o644)
    (made / "etc/old/file").write_bytes(b"old\n")
    (made / "out").symlink_to(tmp_path)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/secret").write_text("not the image's")
    return made


def layer(path: Path, *members: Member, opaque: tuple[str, ...] = ()) -> Path:
    """None: removed; text: a link; a name that ends in a slash: a directory."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in members:
            info = tarfile.TarInfo(f"./{name.rstrip('/')}")
            info.mode = 0o755 if name.endswith("/") else 0o644
            if name in opaque:
                info.pax_headers = OPAQUE
            if name.endswith("/"):
                info.type = tarfile.DIRTYPE
            elif content is None:
                info.type, info.mode = tarfile.CHRTYPE, 0
            elif isinstance(content, str):
                info.type, info.linkname, info.mode = tarfile.SYMTYPE, content, 0o777
            else:
                info.size = len(content)
            tar.addfile(info, io.BytesIO(content) if isinstance(content, bytes) else None)
    return path


def told(root: Path, before: Path | None, after: Path, *, given: frozenset[str] = frozenset()) -> list[tuple[str, str]]:
    return [(one.path, one.kind) for one in compared(root, before, after, given, contents=False)]


def test_the_image_alone(root: Path, tmp_path: Path) -> None:
    assert told(root, None, layer(tmp_path / "a.tar", ("/", b""))) == []
    after = layer(tmp_path / "b.tar", ("etc/", b""), ("etc/hosts", b"other\n"), ("etc/new/", b""), ("etc/new/file", b"1"))
    assert told(root, None, after) == [("/etc/hosts", "modified"), ("/etc/new", "added"), ("/etc/new/file", "added")]


def test_what_was_written_again_is_no_change(root: Path, tmp_path: Path) -> None:
    assert told(root, None, layer(tmp_path / "a.tar", ("etc/", b""), ("etc/hosts", b"hosts\n"))) == []


def test_what_was_removed(root: Path, tmp_path: Path) -> None:
    after = layer(tmp_path / "a.tar", ("etc/", b""), ("etc/old", None))
    assert told(root, None, after) == [("/etc/old", "deleted")]
    with_contents = compared(root, None, after, frozenset(), contents=True)
    assert [(one.path, one.before) for one in with_contents] == [("/etc/old", None), ("/etc/old/file", b"old\n")]


def test_a_directory_that_was_replaced_shows_nothing_of_the_image(root: Path, tmp_path: Path) -> None:
    after = layer(tmp_path / "a.tar", ("etc/", b""), ("etc/old/", b""), ("etc/old/own", b"1"), opaque=("etc/old/",))
    assert told(root, None, after) == [("/etc/old/file", "deleted"), ("/etc/old/own", "added")]
    assert told(root, after, after) == []
    assert told(root, after, layer(tmp_path / "b.tar", ("/", b""))) == [("/etc/old/file", "added"), ("/etc/old/own", "deleted")]


def test_two_layers(root: Path, tmp_path: Path) -> None:
    before = layer(tmp_path / "a.tar", ("etc/", b""), ("etc/link", "hosts"), ("etc/kept", b"1"), ("etc/hosts", None))
    after = layer(tmp_path / "b.tar", ("etc/", b""), ("etc/link", "kept"), ("etc/kept", b"1"), ("etc/hosts", b"hosts\n"))
    assert told(root, before, after) == [("/etc/hosts", "added"), ("/etc/link", "modified")]


def test_a_link_of_the_image_is_not_followed(root: Path, tmp_path: Path) -> None:
    """A directory over it is the layer's own, whatever the link leads to on this machine."""
    after = layer(tmp_path / "a.tar", ("out/", b""), ("out/etc/", b""), ("out/etc/own", b"1"))
    assert told(root, None, after) == [("/out", "modified"), ("/out/etc", "added"), ("/out/etc/own", "added")]


def test_a_directory_that_was_made_for_the_sandbox_is_no_change(root: Path, tmp_path: Path) -> None:
    after = layer(tmp_path / "a.tar", ("made/", b""), ("made/here/", b""), ("made/here/own", b"1"))
    assert told(root, None, after, given=above("/made/here")) == [("/made/here/own", "added")]
    assert above("/made/here") == {"/", "/made", "/made/here"}
