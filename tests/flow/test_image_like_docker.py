"""The tree of an image is what Docker makes of the same image."""

import asyncio
import io
import json
import os
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

import tree_listing
from excise.storage.image import resolve
from excise.storage.store import remove_tree
from excise.storage.unpack import MOUNT_POINTS
from oci_image import awkward, build, digest, write_saved

LAYERS = 110  # Docker takes at most 127
MADE_BY_DOCKER = {".dockerenv", "dev", "etc/hosts", "etc/hostname", "etc/resolv.conf", "etc/mtab"}
OURS = {name for name, _ in MOUNT_POINTS}


def docker(*arguments: str) -> bytes:
    return subprocess.run(["docker", *arguments], capture_output=True, check=True, timeout=200).stdout


def exported(reference: str) -> dict[str, list[object]]:
    """What `docker export` says of every name, in the words of a listing."""
    container = docker("create", reference, "true").decode().strip()
    try:
        data = docker("export", container)
    finally:
        docker("rm", container)
    found: dict[str, list[object]] = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            content = archive.extractfile(member).read() if member.isreg() or member.islnk() else b""  # pyright: ignore[reportOptionalMemberAccess]
            found[member.name.rstrip("/")] = [
                member.mode & 0o7777,
                member.uid,
                member.gid,
                digest(content),
                member.linkname if member.issym() else "",
            ]
    return found


def ours(root: Path) -> dict[str, list[object]]:
    found: dict[str, list[object]] = {}
    for name, (mode, uid, gid, _, _, _, _) in tree_listing.listing(str(root)).items():
        path = root / name
        plain = path.is_file() and not path.is_symlink()
        content = digest(path.read_bytes()) if plain else digest(b"")
        link = str(path.readlink()) if path.is_symlink() else ""
        found[name] = [int(str(mode), 8) & 0o7777, uid, gid, content, link]
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="owners are as in the image for root alone")
def test_it_is_what_docker_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs_here: Callable[[str], None]) -> None:
    runs_here("docker")
    monkeypatch.setenv("EXCISE_HOME", str(tmp_path / "home"))
    image = build(awkward(LAYERS, strange=False), WorkingDir="/", Cmd=["true"])
    name = f"excise-test-awkward-{os.getpid()}:1"
    saved = write_saved(image, tmp_path / "image.tar", name)
    docker("load", "--input", str(saved))
    try:
        theirs = exported(name)
        from_daemon = asyncio.run(resolve(name))
        from_file = asyncio.run(resolve(str(saved)))
        assert from_daemon.root == from_file.root
        mine = ours(from_file.root)
    finally:
        docker("rmi", name)
        remove_tree(tmp_path / "home")
    left_out = MADE_BY_DOCKER | OURS
    differing = {
        path: (mine.get(path), theirs.get(path))
        for path in mine.keys() | theirs.keys()
        if path not in left_out and path.split("/")[0] not in OURS and mine.get(path) != theirs.get(path)
    }
    assert json.dumps(differing, indent=1, default=str) == "{}"
