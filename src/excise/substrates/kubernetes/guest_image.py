"""The image that brings the guest into pods, for a registry that nodes pull from, or to be imported on each node."""

import hashlib
import io
import json
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

from excise.guest import programs
from excise.substrates.kubernetes.arrival import INSIDE

_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


def image_tar(path: Path, machine: str) -> bytes:
    """The one-file image, as `docker save` writes one: `ctr images import`, `docker load` and `skopeo` take it.

    The same program gives the same bytes.
    """
    layer = _tar({INSIDE: path.read_bytes()}, mode=0o755)
    made = {
        "architecture": _MACHINES.get(machine, machine),
        "os": "linux",
        "config": {"Entrypoint": [f"/{INSIDE}"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{_digest(layer)}"]},
    }
    config = _json(made)
    named = f"{_digest(config)}.json"
    held = [{"Config": named, "RepoTags": [programs.guest_image(machine)], "Layers": ["layer.tar"]}]
    return _tar({"manifest.json": _json(held), named: config, "layer.tar": layer}, mode=0o644)


def _tar(files: Mapping[str, bytes], mode: int) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.mode, member.size = mode, len(data)
            archive.addfile(member, io.BytesIO(data))
    return stream.getvalue()


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def main(arguments: list[str]) -> None:
    """`python -m excise.substrates.kubernetes.guest_image x86_64 > guest.tar`: the image, to be pushed or imported."""
    machine = arguments[0] if arguments else "x86_64"
    path = programs.program("excise-guest", machine)
    sys.stderr.write(f"{programs.guest_image(machine)}\n")
    sys.stdout.buffer.write(image_tar(path, machine))


if __name__ == "__main__":
    main(sys.argv[1:])
