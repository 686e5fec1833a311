# ruff: noqa: S310 - the registry is on loopback

"""Images that nobody holds: in a real registry, the same files each time, and no byte that an engine could know."""

import asyncio
import gzip
import hashlib
import io
import json
import shutil
import tarfile
import urllib.error
import urllib.request

import pytest

from excise.errors import SpecError
from excise.storage.fresh import FreshImages
from oci_image import entry, tar


def get(name, kind, what):
    host, _, path = name.rpartition(":")[0].partition("/")
    accept = {"Accept": "application/vnd.oci.image.manifest.v1+json, */*"}
    asked = urllib.request.Request(f"http://{host}/v2/{path}/{kind}/{what}", headers=accept)
    with urllib.request.urlopen(asked, timeout=20) as answer:
        return answer.read()


def pulled(name):
    """The layer and the digests of one image, each checked against what its manifest says."""
    manifest = json.loads(get(name, "manifests", name.rpartition(":")[2]))
    (layer,) = manifest["layers"]
    blob, config = get(name, "blobs", layer["digest"]), get(name, "blobs", manifest["config"]["digest"])
    plain = gzip.decompress(blob)
    assert (len(blob), f"sha256:{hashlib.sha256(blob).hexdigest()}") == (layer["size"], layer["digest"])
    assert json.loads(config)["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(plain).hexdigest()}"]
    return layer["digest"], plain


def files(layer):
    with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
        return {member.name: member.isfile() and archive.extractfile(member).read() for member in archive}  # pyright: ignore


def test_each_is_new_in_its_bytes_and_the_same_in_its_files(tmp_path, monkeypatch, must_work):
    if shutil.which("docker-registry") is None:
        must_work("docker-registry", "it is not installed: apt-get install docker-registry")
    monkeypatch.setenv("EXCISE_HOME", str(tmp_path / "home"))
    root = tmp_path / "root.tar"
    root.write_bytes(tar(entry("bin/sh", b"#!", mode=0o755), entry("etc/motd", b"x" * 100_000)))

    async def scenario():
        images = FreshImages(str(root))
        try:
            first = await images.next()
            seen = await asyncio.to_thread(pulled, first)
            second = await images.next()
            again = await asyncio.to_thread(pulled, second)
            with pytest.raises(urllib.error.HTTPError):  # one at a time: the registry does not grow
                await asyncio.to_thread(get, first, "blobs", seen[0])
        finally:
            await images.close()
        with pytest.raises(urllib.error.URLError):
            await asyncio.to_thread(get, second, "blobs", again[0])
        return seen, again

    seen, again = asyncio.run(scenario())
    assert seen[0] != again[0]
    assert files(seen[1]) == files(again[1])
    assert files(seen[1])["etc/motd"] == b"x" * 100_000


def test_an_image_that_borrows_the_hosts_files_is_refused(must_work):
    if shutil.which("docker-registry") is None:
        must_work("docker-registry", "it is not installed: apt-get install docker-registry")

    async def scenario():
        images = FreshImages("host")
        with pytest.raises(SpecError, match="use excise/base"):
            await images.next()
        await images.close()

    asyncio.run(scenario())
