"""An image with Python and Excise in it, for pods that make sandboxes of their own: excise/base and one layer more."""

import io
import json
import re
import sys
import tarfile
import tempfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import excise
from oci_image import digest

_PLACE = "opt/excise"
_BASE = "/excise/base:latest"
_INSIDE = "/excise/inside:test"
Ctr = Callable[..., str]


def _needed(name: str, found: dict[str, list[Path]]) -> None:
    """The files of a distribution, and of what it needs without any extra."""
    name = re.sub(r"[-_.]+", "-", name).lower()
    if name in found:
        return
    try:
        installed = distribution(name)
    except PackageNotFoundError:
        return  # for another Python, or another system
    found[name] = [Path(str(file)) for file in installed.files or () if not str(file).startswith("..")]
    for requirement in installed.requires or ():
        if "extra ==" not in requirement:
            named = re.match(r"[A-Za-z0-9_.-]+", requirement)
            assert named is not None
            _needed(named[0], found)


def layer() -> bytes:
    """Excise as it is here, and what it imports."""
    found: dict[str, list[Path]] = {}
    _needed("excise", found)
    site = Path(next(path for path in sys.path if path.endswith("site-packages")))
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for relative in sorted({file for files in found.values() for file in files}):
            if (site / relative).is_file() and relative.suffix not in (".pyc", ".pth"):
                archive.add(site / relative, f"{_PLACE}/{relative}")
        package = Path(excise.__file__).parent
        for path in sorted(package.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and "aarch64" not in path.parts:
                archive.add(path, f"{_PLACE}/excise/{path.relative_to(package)}")
    return stream.getvalue()


def put_on_node(ctr: Ctr) -> str:
    """Import it into a node's containerd, which has the layer below already; its name there."""
    held = next(line.split() for line in ctr("images", "list").splitlines() if f"{_BASE} " in line)
    name = held[0].removesuffix(_BASE) + _INSIDE
    base = json.loads(ctr("content", "get", held[2]))
    config = json.loads(ctr("content", "get", base["config"]["digest"]))
    ours = layer()
    config["rootfs"]["diff_ids"].append(digest(ours))
    config["history"].append({"created_by": "a test"})
    config["config"]["Env"].append(f"PYTHONPATH=/{_PLACE}")
    packed = json.dumps(config).encode()
    base["config"] |= {"digest": digest(packed), "size": len(packed)}
    base["layers"].append({**base["layers"][0], "digest": digest(ours), "size": len(ours)})
    manifest = json.dumps(base).encode()
    entry = {"mediaType": base["mediaType"], "digest": digest(manifest), "size": len(manifest)}
    index = {"schemaVersion": 2, "manifests": [{**entry, "annotations": {"io.containerd.image.name": name}}]}
    files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": json.dumps(index).encode()}
    files |= {f"blobs/sha256/{digest(one).removeprefix('sha256:')}": one for one in (manifest, packed, ours)}
    with tempfile.NamedTemporaryFile(suffix=".tar") as file:
        with tarfile.open(fileobj=file, mode="w") as archive:
            for path, data in files.items():
                member = tarfile.TarInfo(path)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
        file.flush()
        ctr("images", "import", file.name)
    return name
