"""A registry on loopback that serves images made for tests, and misbehaves as it is told."""

import base64
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from oci_image import Built, digest

Misbehaviour = Callable[["Handler", bytes, int], bool]
"""Told of a request for a blob and from which byte; whether it has answered it."""


class Registry(ThreadingHTTPServer):
    """What it holds, what it was asked for, and how it behaves."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.misbehave: Misbehaviour = lambda *_: False
        self.guard: Callable[[Handler], bool] = lambda _: True
        self.ended = threading.Event()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def put(self, image: Built, tag: str) -> str:
        """Hold the image; its whole name."""
        for blob in (image.config, *image.blobs):
            self.blobs[digest(blob)] = blob
        self.manifests[tag] = self.manifests[digest(image.manifest)] = image.manifest
        return f"{self.host}/made:{tag}"


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Registry  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: tests look at `asked`."""

    def do_GET(self) -> None:
        kind, _, name = self.path.partition("?")[0].removeprefix("/v2/made/").partition("/")
        self.server.asked.append(self.path)
        if self.path.startswith("/token"):
            self.answer(200, json.dumps({"token": "a-token"}).encode()) if self._authorized("joe:secret") else self.answer(401)
        elif not self.server.guard(self):
            return
        elif kind == "manifests" and name in self.server.manifests:
            self.answer(200, self.server.manifests[name])
        elif kind == "blobs" and name in self.server.blobs:
            self.blob(self.server.blobs[name])
        else:
            self.answer(404)

    def blob(self, data: bytes) -> None:
        at = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        if not self.server.misbehave(self, data, at):
            self.answer(206 if at else 200, data[at:])

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def begin(self, status: int, data: bytes, at: int, until: int) -> None:
        """Announce all from `at` on, and send only what comes before `until`."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(data) - at))
        self.end_headers()
        self.wfile.write(data[at:until])
        self.wfile.flush()

    def reset(self) -> None:
        """Break the connection off as a crashed machine does."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def _authorized(self, wanted: str) -> bool:
        return self.headers.get("Authorization") == "Basic " + base64.b64encode(wanted.encode()).decode()

    def demands_token(self) -> bool:
        """A guard: only who shows the token of /token is let in."""
        if self.headers.get("Authorization") == "Bearer a-token":
            return True
        realm = f'Bearer realm="http://{self.server.host}/token",service="made",scope="repository:made:pull"'
        self.answer(401, WWW_Authenticate=realm)
        return False

    def demands_password(self) -> bool:
        """A guard: only joe is let in."""
        if self._authorized("joe:secret"):
            return True
        self.answer(401, WWW_Authenticate='Basic realm="made"')
        return False


@contextmanager
def serving() -> Iterator[Registry]:
    with Registry() as registry:
        thread = threading.Thread(target=registry.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield registry
        finally:
            registry.ended.set()
            registry.shutdown()
            thread.join()
