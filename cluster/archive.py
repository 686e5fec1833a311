"""An image of one layer as the archive that `docker save` writes, which every container engine reads."""

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any, BinaryIO

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def write(archive: BinaryIO, layer: Path, names: list[str], machine: str, config: dict[str, Any]) -> None:
    """Into `archive` the image whose files the tar `layer` holds, under all of `names` (each with its tag)."""
    with layer.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    described = json.dumps(
        {
            "architecture": _ARCHITECTURES.get(machine, machine),
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            "history": [{"created_by": "excise"}],
        },
        sort_keys=True,
    ).encode()
    config_name = f"{hashlib.sha256(described).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": names, "Layers": [f"{digest}/layer.tar"]}]
    with tarfile.open(fileobj=archive, mode="w|") as tar:
        _add(tar, config_name, described)
        _add(tar, "manifest.json", json.dumps(manifest).encode())
        tar.add(layer, f"{digest}/layer.tar", filter=_plain)


def layer_of(program: Path, inside: str) -> bytes:
    """A layer that holds one program, of root's, and nothing else; the same bytes whenever it is made."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        entry = tarfile.TarInfo(inside.removeprefix("/"))
        entry.mode, entry.size = 0o755, program.stat().st_size
        with program.open("rb") as file:
            tar.addfile(entry, file)
    return made.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
