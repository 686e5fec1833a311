"""Images that no machine holds: the plan's image under a new name in a registry on loopback, so that create must pull it.

A new name alone would not do, for engines keep layers by their content: every layer here is new in its bytes, by a nonce behind
the end of its tar, and the same in its files.
"""

import asyncio
import gzip
import hashlib
import http.client
import json
import os
import platform
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from excise.errors import SpecError, SubstrateError
from excise.storage.image import resolve
from excise.storage.store import Image

_REGISTRY = "docker-registry"
_NAME = "excise/fresh"
_LISTENS = re.compile(rb"listening on 127\.0\.0\.1:(\d+)")
_CHUNK_BYTES = 1 << 20
_BLOCK_BYTES = 512
_ANSWER_S = 60.0
_END_S = 10.0
_LEVEL = 1
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


class Packed(NamedTuple):
    """A layer without its nonce: where it lies compressed, and both digests so far."""

    path: Path
    packed: Any
    plain: Any


class FreshImages:
    """A registry of this machine with one image in it, another each time. It is started when the first is asked for."""

    def __init__(self, image: str) -> None:
        self._image = image
        self._server: asyncio.subprocess.Process | None = None
        self._draining: asyncio.Task[None] | None = None
        self._place: Path | None = None
        self._layer: Packed | None = None
        self._config: dict[str, Any] = {}
        self._port = 0

    async def next(self) -> str:
        """The name of an image that nobody has pulled yet; the one before it is in the registry no more."""
        if self._server is None:
            await self._start()
        nonce = secrets.token_hex(8)
        await asyncio.to_thread(self._publish, nonce)
        return f"127.0.0.1:{self._port}/{_NAME}:{nonce}"

    async def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.terminate()
            try:
                async with asyncio.timeout(_END_S):
                    await server.wait()
            except TimeoutError:
                server.kill()
                await server.wait()
        if self._draining is not None:
            await self._draining
        if self._place is not None:
            await asyncio.to_thread(shutil.rmtree, self._place, ignore_errors=True)

    async def _start(self) -> None:
        program = shutil.which(_REGISTRY)
        if program is None:
            raise SpecError(f"state=registry needs a registry on this machine: apt-get install {_REGISTRY}")
        found = await resolve(self._image)
        if found.tar is None or found.binds:
            raise SpecError(f"state=registry needs an image that is one tar, and {self._image} is not: use excise/base")
        if self._place is None:
            self._place = Path(tempfile.mkdtemp(prefix="excise-registry-"))
        if self._layer is None:
            self._layer = await asyncio.to_thread(packed, found.tar, self._place / "layer.tar.gz")
        self._config = _config(found)
        await self._serve(program, self._place)

    async def _serve(self, program: str, place: Path) -> None:
        """It says itself which port it got, and when it listens there."""
        config = place / "config.yml"
        storage = {"filesystem": {"rootdirectory": str(place / "data")}}
        told = {"version": 0.1, "log": {"accesslog": {"disabled": True}}, "storage": storage, "http": {"addr": "127.0.0.1:0"}}
        config.write_text(json.dumps(told))  # which is YAML too
        self._server = await asyncio.create_subprocess_exec(
            program, "serve", str(config), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
        errors = self._server.stderr
        assert errors is not None
        while line := await errors.readline():
            if listens := _LISTENS.search(line):
                self._port = int(listens[1])
                self._draining = asyncio.create_task(_drain(errors))
                return
        await self.close()
        raise SubstrateError(f"{_REGISTRY} ended before it listened: `{_REGISTRY} serve` by hand says why")

    def _publish(self, nonce: str) -> None:
        assert self._layer is not None
        assert self._place is not None
        shutil.rmtree(self._place / "data", ignore_errors=True)
        tail = nonce.encode().ljust(_BLOCK_BYTES, b"\0")
        end = gzip.compress(tail)
        digests = [before.copy() for before in (self._layer.packed, self._layer.plain)]
        for digest, last in zip(digests, (end, tail), strict=True):
            digest.update(last)
        blob, plain = (f"sha256:{digest.hexdigest()}" for digest in digests)
        size_bytes = self._layer.path.stat().st_size + len(end)
        config = json.dumps({**self._config, "rootfs": {"type": "layers", "diff_ids": [plain]}}).encode()
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": {"mediaType": _CONFIG, "digest": _digest(config), "size": len(config)},
            "layers": [{"mediaType": _LAYER, "digest": blob, "size": size_bytes}],
        }
        self._push(_digest(config), len(config), iter((config,)))
        self._push(blob, size_bytes, _read(self._layer.path, end))
        self._ask("PUT", f"/v2/{_NAME}/manifests/{nonce}", json.dumps(manifest).encode(), {"Content-Type": _MANIFEST})
        os.sync()  # no trial pays for what was written here

    def _push(self, digest: str, size_bytes: int, body: Iterator[bytes]) -> None:
        place = urlsplit(self._ask("POST", f"/v2/{_NAME}/blobs/uploads/"))
        path = f"{place.path}?{place.query}&digest={digest}"
        self._ask("PUT", path, body, {"Content-Type": "application/octet-stream", "Content-Length": str(size_bytes)})

    def _ask(self, verb: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> str:
        """Where the registry says that it goes on."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_ANSWER_S)
        try:
            connection.request(verb, path, body=body, headers=headers or {})
            answer = connection.getresponse()
            said = answer.read()
            if answer.status >= 300:
                raise SubstrateError(f"the registry on loopback answered {answer.status} to {verb}: {said.decode()[:200]}")
            return answer.headers.get("Location", "")
        finally:
            connection.close()


async def _drain(errors: asyncio.StreamReader) -> None:
    while await errors.read(_CHUNK_BYTES):
        pass


def packed(tar: Path, to: Path) -> Packed:
    """Compress `tar`, and hash both forms on the way."""
    plain, digest = hashlib.sha256(), hashlib.sha256()
    with tar.open("rb") as source, gzip.open(to, "wb", compresslevel=_LEVEL) as sink:
        while piece := source.read(_CHUNK_BYTES):
            plain.update(piece)
            sink.write(piece)
    for piece in _read(to):
        digest.update(piece)
    return Packed(to, digest, plain)


def _read(path: Path, end: bytes = b"") -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_CHUNK_BYTES):
            yield piece
    if end:
        yield end


def _config(image: Image) -> dict[str, Any]:
    how = {
        "Env": [f"{name}={value}" for name, value in image.env.items()],
        "WorkingDir": image.workdir,
        "User": image.user or "",
    }
    machine = platform.machine()
    return {"architecture": _MACHINES.get(machine, machine), "os": "linux", "config": how}


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
