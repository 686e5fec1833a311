"""The network: an allow-list lets through what it lists and nothing else, and the steps may have another than the run."""

import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from excise.action import Exec
from excise.contract import scripts
from excise.contract.bench import Bench
from excise.contract.case import case, equal, expect
from excise.contract.watch import sh
from excise.spec import Allow, Step

DIRECTLY = {"http_proxy": ""}


class _Server(ThreadingHTTPServer):
    """Says one thing to whoever asks, and counts who did."""

    daemon_threads = True

    def __init__(self, says: str) -> None:
        super().__init__((_own_address(), 0), _Says)
        self.says = says.encode()
        self.asked = 0

    @property
    def place(self) -> tuple[str, int]:
        host, port = self.server_address[:2]
        return str(host), port


class _Says(BaseHTTPRequestHandler):
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        self.server.asked += 1
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.server.says)

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody wants to know."""


def _own_address() -> str:
    """Where a sandbox, with whatever network it has, might reach this host; nothing is sent to find out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return probe.getsockname()[0]


@contextmanager
def answering(says: str) -> Generator[_Server]:
    """A server on this host. In a thread: the event loop's clock may be a virtual one."""
    with _Server(says) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def fetch(server: _Server, **env: str) -> Exec:
    host, port = server.place
    return sh(scripts.FETCH, host, str(port), env=env, timeout_s=20)


@case(
    promise="network=Allow(hosts, ports) lets through what it lists, and nothing else.",
    why="A task that needs one package index is no reason to let a policy look the answer up elsewhere.",
    needs=("network.allow",),
)
async def network_allow(bench: Bench) -> None:
    with answering(bench.nonce) as listed, answering(bench.nonce) as other:
        host, port = listed.place
        box = await bench.sandbox(network=Allow((host,), (port,)))
        equal((await box.run(fetch(listed))).stdout.decode(), bench.nonce, "what a listed server says")
        for how in ({}, DIRECTLY):
            expect(not (await box.run(fetch(other, **how))).ok, "a port that is not listed is reached")
        box = await bench.sandbox(network=Allow(("192.0.2.1",), (port,)))
        expect(not (await box.run(fetch(listed))).ok, "a host that is not listed is reached")
        equal((listed.asked, other.asked), (1, 0), "how often the listed and the other server were asked")


@case(
    promise="build_network= is what the steps have, and actions have network=.",
    why="Dependencies come from the network, and the rollout that follows must have none.",
    needs=("build_network", "network.allow", "network.none"),
)
async def build_network(bench: Bench) -> None:
    with answering(bench.nonce) as server:
        host, port = server.place
        step = Step("fetch", (sh(scripts.FETCH_IN_STEP, host, str(port), timeout_s=20),))
        box = await bench.sandbox(network="none", build_network=Allow((host,), (port,)), steps=(*bench.spec.steps, step))
        equal((await box.read("fetched")).decode(), bench.nonce, "what a step fetched")
        by_then = (await box.read("proxy")).decode()
        for how in ({}, DIRECTLY, {"http_proxy": by_then}):
            expect(not (await box.run(fetch(server, **how))).ok, "an action has the steps' network")
        equal(server.asked, 1, "how often the server was asked")
