"""Images made for tests: layers written member by member, as OCI layouts, as `docker save` writes them, in a registry."""

# ruff: noqa: S310 - the registry is on loopback

import gzip
import hashlib
import io
import json
import platform
import re
import struct
import subprocess
import tarfile
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import zstandard

DIR, LINK, HARD, FIFO = tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE
MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
CAPABILITY = struct.pack("<IIIII", 0x02000001, 1 << 13, 0, 0, 0)
"""cap_net_raw=ep, as the kernel keeps it."""
FORMATS: tuple[Callable[[bytes], bytes], ...] = (lambda tar: gzip.compress(tar, 1), zstandard.compress, lambda tar: tar)


def entry(name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    made = tarfile.TarInfo(name)
    made.type, made.mode, made.mtime, made.size = kind, 0o755 if kind == DIR else 0o644, 1_700_000_000, len(data)
    for field, value in fields.items():
        setattr(made, field, value)
    return made, data


def xattrs(**values: bytes) -> dict[str, str]:
    """pax headers; dots of names are written as two underscores."""
    return {
        f"SCHILY.xattr.{name.replace('__', '.')}": value.decode("utf-8", "surrogateescape") for name, value in values.items()
    }


def tar(*entries: tuple[tarfile.TarInfo, bytes], format: int = tarfile.PAX_FORMAT) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=format, encoding="utf-8", errors="surrogateescape") as archive:
        for info, data in entries:
            archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Built(NamedTuple):
    """An image, ready to be pushed or written."""

    manifest: bytes
    config: bytes
    tars: tuple[bytes, ...]
    blobs: tuple[bytes, ...]


def build(tars: Sequence[bytes], compress: Sequence[Callable[[bytes], bytes]] = FORMATS, **config: Any) -> Built:
    """An image of these layers, compressed by each of `compress` in turn."""
    blobs = tuple(compress[index % len(compress)](one) for index, one in enumerate(tars))
    body = json.dumps(
        {
            "architecture": MACHINE,
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [digest(one) for one in tars]},
            "history": [{"created_by": "a test"} for _ in tars],
        }
    ).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest(body), "size": len(body)},
        "layers": [{"mediaType": _media_type(blob), "digest": digest(blob), "size": len(blob)} for blob in blobs],
    }
    return Built(json.dumps(manifest).encode(), body, tuple(tars), blobs)


def _media_type(blob: bytes) -> str:
    ending = "+gzip" if blob.startswith(b"\x1f\x8b") else "+zstd" if blob.startswith(b"\x28\xb5") else ""
    return f"application/vnd.oci.image.layer.v1.tar{ending}"


def index(*manifests: tuple[bytes, str]) -> bytes:
    """An image index: manifests, each with its architecture."""
    return json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [
                {
                    "mediaType": "application/vnd.oci.image.manifest.v1+json",
                    "digest": digest(one),
                    "size": len(one),
                    "platform": {"os": "linux", "architecture": architecture},
                }
                for one, architecture in manifests
            ],
        }
    ).encode()


def write_layout(image: Built, directory: Path) -> Path:
    """An OCI layout as a directory."""
    blobs = directory / "blobs/sha256"
    blobs.mkdir(parents=True)
    for blob in (image.manifest, image.config, *image.blobs):
        (blobs / digest(blob).removeprefix("sha256:")).write_bytes(blob)
    (directory / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (directory / "index.json").write_bytes(index((image.manifest, MACHINE)))
    return directory


def write_saved(image: Built, path: Path, name: str) -> Path:
    """As `docker save` writes it: plain layers and a manifest.json."""
    files = {f"{number}/layer.tar": one for number, one in enumerate(image.tars)}
    config = f"{digest(image.config).removeprefix('sha256:')}.json"
    listed = [{"Config": config, "RepoTags": [name], "Layers": list(files)}]
    with tarfile.open(path, "w") as archive:
        for member, data in {**files, config: image.config, "manifest.json": json.dumps(listed).encode()}.items():
            info = tarfile.TarInfo(member)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def push(image: Built, address: str, name: str, tag: str) -> None:
    """Put the image into the registry at `address`."""
    for blob in (image.config, *image.blobs):
        _put(f"{address}/v2/{name}", blob)
    _put_manifest(f"{address}/v2/{name}/manifests/{tag}", image.manifest, "application/vnd.oci.image.manifest.v1+json")


def push_index(body: bytes, address: str, name: str, tag: str) -> None:
    _put_manifest(f"{address}/v2/{name}/manifests/{tag}", body, "application/vnd.oci.image.index.v1+json")


def _put(repository: str, blob: bytes) -> None:
    begun = urllib.request.Request(f"{repository}/blobs/uploads/", data=b"", method="POST")
    with urllib.request.urlopen(begun, timeout=30) as answer:
        place = answer.headers["Location"]
    place += ("&" if "?" in place else "?") + f"digest={digest(blob)}"
    headers = {"Content-Type": "application/octet-stream"}
    urllib.request.urlopen(urllib.request.Request(place, data=blob, method="PUT", headers=headers), timeout=30).close()


def _put_manifest(url: str, body: bytes, media_type: str) -> None:
    request = urllib.request.Request(url, data=body, method="PUT", headers={"Content-Type": media_type})
    urllib.request.urlopen(request, timeout=30).close()


def awkward(count: int, *, strange: bool = True) -> list[bytes]:
    """`count` layers, 21 or more, with all that layers do; `strange`: also what Docker refuses, hard links into lower ones."""
    layers = [
        tar(
            *(entry(name, kind=DIR) for name in ("etc", "bin", "d", "d/sub", "opaque", "whole", "owned", "deep")),
            entry("tmp", kind=DIR, mode=0o1777),
            entry("etc/passwd", b"root:x:0:0::/:/bin/sh\njoe:x:1000:1000::/srv:/bin/sh\n"),
            entry("d/hidden", b"lower"),
            entry("d/sub/kept", b"kept"),
            entry("opaque/lower", b"lower"),
            entry("whole/lower", b"lower"),
            entry("was-file", b"file"),
            entry("was-directory", kind=DIR),
            entry("was-directory/inside", b"inside"),
            entry("was-link", kind=LINK, linkname="etc"),
            entry("linked", b"linked content"),
            entry("changed", b"0"),
        ),
        tar(entry("d", kind=DIR), entry("d/.wh.hidden")),
        tar(entry("opaque", kind=DIR, mode=0o750), entry("opaque/.wh..wh..opq"), entry("opaque/upper", b"upper")),
        tar(entry(".wh.whole")),
        tar(entry("whole", kind=DIR), entry("whole/anew", b"anew")),
        tar(entry("was-file", kind=DIR), entry("was-file/inside", b"now a directory")),
        tar(entry("was-directory", b"now a file")),
        tar(entry("was-link", kind=DIR), entry("was-link/inside", b"now a directory")),
        tar(entry("one", b"twice"), entry("two", kind=HARD, linkname="one")),
        tar(entry("bin/setuid", b"#!/bin/sh\n", mode=0o4755), entry("bin/setgid", b"#!/bin/sh\n", mode=0o2755, gid=50)),
        tar(entry("bin/capable", b"x", mode=0o755, pax_headers=xattrs(security__capability=CAPABILITY))),
        tar(entry("bin/noted", b"x", pax_headers=xattrs(user__note=b"a note"))),
        tar(entry("owned/joe", b"x", uid=1000, gid=1000), entry("owned/high", b"x", uid=65534, gid=65534)),
        tar(entry("owned", kind=DIR, mode=0o700, uid=1000, gid=1000), entry("owned/link", kind=LINK, linkname="joe", uid=1000)),
        tar(entry("deep/" + "/".join(["a-rather-long-name"] * 20) + "/file", b"pax")),
        tar(entry("deep/" + "/".join(["gnu-rather-long-name"] * 20) + "/file", b"gnu"), format=tarfile.GNU_FORMAT),
        tar(entry("deep/ünïcode", b"x"), entry("deep/\udcff-no-text", b"x"), entry("deep/pipe", kind=FIFO)),
        tar(entry("dangling", kind=LINK, linkname="/nowhere/at/all"), entry("mode-0", b"x", mode=0)),
        tar(),
    ]
    if strange:
        layers.append(tar(entry("etc/late", b"late"), entry("etc/.wh.late")))
        layers.append(tar(entry("across", kind=HARD, linkname="linked"), entry("d/across", kind=HARD, linkname="d/sub/kept")))
    layers += [tar(entry("changed", str(number).encode()), entry(f"n/{number}", b"n")) for number in range(count - len(layers))]
    return layers


def programs(*paths: str) -> bytes:
    """A layer with these programs of this machine's, and the libraries they are linked with."""
    files = {path: path for path in paths}
    for path in paths:
        linked = subprocess.run(["ldd", path], capture_output=True, text=True, check=True, timeout=20).stdout
        files |= {found: found for found in re.findall(r"(?:=> )?(/\S+) \(0x", linked)}
    return tar(*(entry(name.lstrip("/"), Path(path).read_bytes(), mode=0o755) for name, path in sorted(files.items())))
