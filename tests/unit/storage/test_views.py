"""Views of layers that very many others show, too."""

import errno
import os
from pathlib import Path

import msgspec
import pytest

from excise.storage.layers.jobs import LayerRecord, View
from excise.storage.layers.view import build

from .overlays import seen

MOST_TRIED = 70_000


def _layer(place: Path) -> Path:
    (place / "tree").mkdir(parents=True)
    file = place / "tree/file"
    file.write_text("content")
    file.chmod(0o640)
    os.setxattr(file, "user.mine", b"1")
    os.utime(file, ns=(10**18, 10**18))
    (place / "tree/other").write_text("another")
    record = LayerRecord(digest="sha256:00", size_bytes=7, content="sha256:00", owners="kept")
    (place / "layer.json").write_bytes(msgspec.json.encode(record))
    return place


def _names_given(file: Path, directory: Path) -> int:
    """Give it all the names it may have."""
    for number in range(MOST_TRIED):
        try:
            os.link(file, directory / f"{number}")
        except OSError as error:
            if error.errno != errno.EMLINK:
                raise
            return number
    return MOST_TRIED


def test_a_file_that_can_have_no_more_names_is_copied(tmp_path: Path) -> None:
    layer = _layer(tmp_path / "layer")
    file = layer / "tree/file"
    directory = tmp_path / "names"
    directory.mkdir()
    if _names_given(file, directory) == MOST_TRIED:
        pytest.skip("files may have more names here than are worth making")
    root = tmp_path / "root"
    root.mkdir()
    build(View(layers=(str(layer),), root=str(root)))
    assert seen(root) == seen(layer / "tree")
    assert (root / "file").stat().st_ino != file.stat().st_ino
    assert (root / "file").stat().st_mtime_ns == 10**18
    assert (root / "other").stat().st_ino == (layer / "tree/other").stat().st_ino
