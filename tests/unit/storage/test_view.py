"""A view of layers is what overlayfs makes of them."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tree_listing
from excise.errors import SpecError
from excise.storage.image import resolve
from excise.storage.layers.store import LayerStore
from excise.storage.store import Image
from oci_image import DIR, HARD, LINK, awkward, build, entry, tar, write_layout

MOUNT_POINTS = ("dev", "proc", "sys", "tmp")


def made(tmp_path: Path, *tars: bytes, **config: Any) -> Image:
    return asyncio.run(resolve(str(write_layout(build(tars, **config), tmp_path / "layout"))))


def inside(script: str, *, cwd: Path) -> str:
    """Run a script where it may mount, and sees all that the layers hold."""
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user", "--map-auto")
    done = subprocess.run(
        ["unshare", "--mount", *user, "sh", "-ec", script], cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode != 0:
        raise OSError(done.stderr)
    return done.stdout


def test_it_is_what_overlayfs_shows(home: Path, tmp_path: Path, must_work: Callable[[str, str], None]) -> None:
    layers = awkward(24, strange=False)
    image = made(tmp_path, *layers)
    store = LayerStore(home)
    for number, one in enumerate(image.layers):
        layer = store.get(one)
        assert layer is not None
        (tmp_path / str(number)).symlink_to(layer.path)
    stack = ":".join(str(number) for number in reversed(range(len(layers))))
    program = f"{sys.executable} -I {tree_listing.__file__}"
    (tmp_path / "merged").mkdir()
    try:
        shown = inside(f"mount -t overlay overlay -o ro,userxattr,lowerdir={stack} merged; {program} merged", cwd=tmp_path)
    except OSError as error:
        must_work("namespace", str(error))
        raise
    expected = {name: entry for name, entry in json.loads(shown).items() if name.split("/")[0] not in MOUNT_POINTS}
    found = json.loads(inside(f"{program} {image.root}", cwd=tmp_path))
    assert {name: entry for name, entry in found.items() if name.split("/")[0] not in MOUNT_POINTS} == expected
    assert set(found) - set(expected) == set(MOUNT_POINTS)
    assert "d/hidden" not in expected  # overlayfs itself was convinced
    assert "opaque/lower" not in expected


def test_a_hard_link_to_a_lower_layers_file_is_that_file(tmp_path: Path, home: Path) -> None:
    image = made(tmp_path, *awkward(21))
    assert (image.root / "across").stat().st_ino == (image.root / "linked").stat().st_ino
    assert (image.root / "d/across").read_bytes() == b"kept"


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("below", "target"),
    [
        (tar(entry("x")), "nothing"),
        (tar(entry("d", kind=LINK, linkname="/etc")), "d/passwd"),
        (tar(entry("d", kind=DIR)), "d"),
        (tar(entry("l", kind=LINK, linkname="/etc/passwd")), "l"),
    ],
    ids=["missing", "through a link", "a directory", "a link"],
)
def test_a_hard_link_to_what_no_lower_layer_has_is_refused(tmp_path: Path, below: bytes, target: str) -> None:
    with pytest.raises(SpecError, match=r"hard link 'a' to .* which no lower layer has"):
        made(tmp_path, below, tar(entry("a", kind=HARD, linkname=target)))


def test_the_same_layer_twice_is_one_layer(home: Path, tmp_path: Path) -> None:
    again = tar(entry("again", b"x"))
    image = made(tmp_path, again, tar(entry(".wh.again")), again)
    assert (image.root / "again").read_bytes() == b"x"
    assert len(list((home / "layers").iterdir())) == 2


@pytest.mark.usefixtures("home")
def test_env_workdir_and_user_come_along_and_what_is_mounted_on_is_there(tmp_path: Path) -> None:
    image = made(tmp_path, tar(entry("x")), Env=["A=b=c", "EMPTY="], WorkingDir="/srv/deep", User="joe:staff")
    assert {**image.env, "PATH": ""} == {"PATH": "", "A": "b=c", "EMPTY": ""}
    assert (image.workdir, image.user) == ("/srv/deep", "joe:staff")
    assert (image.root / "srv/deep").is_dir()
    assert all((image.root / name).is_dir() for name in MOUNT_POINTS)
