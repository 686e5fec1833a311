"""A disk that is full and a file system that layers cannot lie on are told, with a remedy; the store stays whole."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from oci_image import build, entry, tar, write_layout

PROGRAM = """
import asyncio, sys
from excise.errors import SubstrateError
from excise.storage.image import resolve
from excise.storage.layers.store import LayerStore
try:
    asyncio.run(resolve(sys.argv[1]))
except SubstrateError as error:
    print(error)
    print(sorted(path.name for path in LayerStore().root.iterdir()))
"""


def told(script: str, layout: Path, tmp_path: Path, must_work: Callable[[str, str], None]) -> list[str]:
    """What is said with EXCISE_HOME on what `script` mounts at `place`, in a mount namespace of its own."""
    (tmp_path / "place").mkdir()
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    argv = ["unshare", "--mount", *user, "sh", "-ec", f'{script}; exec "$@"', "sh", sys.executable, "-c", PROGRAM, str(layout)]
    env = {**os.environ, "EXCISE_HOME": str(tmp_path / "place/home")}
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        must_work("namespace", done.stderr)
    return done.stdout.splitlines()


def test_a_full_disk(tmp_path: Path, must_work: Callable[[str, str], None]) -> None:
    layout = write_layout(build([tar(entry("big", os.urandom(8 << 20)))]), tmp_path / "layout")
    sentence, left = told("mount -t tmpfs -o size=4m tmpfs place", layout, tmp_path, must_work)
    assert "is full: free some space" in sentence
    assert left == "[]"


def test_an_overlay(tmp_path: Path, must_work: Callable[[str, str], None]) -> None:
    layout = write_layout(build([tar(entry("x", b"x"))]), tmp_path / "layout")
    script = (
        "mkdir under; mount -t tmpfs tmpfs under; mkdir under/lower under/upper under/work; "
        "mount -t overlay overlay -o lowerdir=under/lower,upperdir=under/upper,workdir=under/work place"
    )
    sentence, left = told(script, layout, tmp_path, must_work)
    assert "layers cannot lie on overlay" in sentence
    assert "set EXCISE_HOME to a directory on ext4, xfs, btrfs or tmpfs; in a container, to a volume" in sentence
    assert left == "[]"


@pytest.mark.parametrize("kind", ["ramfs"])
def test_one_without_attributes(tmp_path: Path, must_work: Callable[[str, str], None], kind: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may mount one")
    layout = write_layout(build([tar(entry("x", b"x"))]), tmp_path / "layout")
    sentence, left = told(f"mount -t {kind} {kind} place", layout, tmp_path, must_work)
    assert f"layers cannot lie on {kind}" in sentence
    assert left == "[]"
