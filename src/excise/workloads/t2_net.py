"""t2-net: T2 with its clone over HTTP, through whatever way out of the sandbox its substrate has."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

from excise.errors import SubstrateError
from excise.spec import Allow, Spec
from excise.workloads import commands
from excise.workloads.commands import Runner
from excise.workloads.t1 import ENV
from excise.workloads.t2 import SHORTEST, T2
from excise.workloads.workload import Turn

HOST = "127.0.0.2"
"""Of this host, and not the address that programs leave their proxy out for."""
_START_S = 20.0
_END_S = 10.0


class T2Net(T2):
    """As T2; the repository is served by this host, and is the only thing the sandbox may reach."""

    _named = "t2-net"
    _port = 0

    def __init__(self, actions: int = SHORTEST, runner: Runner = "pytest", bug: Literal["a", "b"] = "a") -> None:
        super().__init__(actions, runner, bug)

    @asynccontextmanager
    async def hosted(self, cache: Path) -> AsyncGenerator[None]:
        async with super().hosted(cache), _serving(self.seed.served) as self._port:
            yield

    def spec(self, image: str) -> Spec:
        return Spec(image=image, env=ENV, network=Allow((HOST,), (self._port,)))

    def _begin(self, word: str) -> Turn:
        return commands.clone(self._site, word, f"http://{HOST}:{self._port}/")


@asynccontextmanager
async def _serving(place: Path) -> AsyncGenerator[int]:
    """The files of `place` over HTTP, git's "dumb" protocol, by a process of its own: it takes no turns with the meter."""
    argv = (sys.executable, "-u", "-m", "http.server", "--bind", HOST, "--protocol", "HTTP/1.1", "--directory", str(place), "0")
    server = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield await _port(server)
    finally:
        if server.returncode is None:
            server.terminate()
        async with asyncio.timeout(_END_S):
            await server.wait()


async def _port(server: asyncio.subprocess.Process) -> int:
    """It says where it listens: "Serving HTTP on 127.0.0.2 port 41093 (http://...) ..."."""
    assert server.stdout is not None
    try:
        async with asyncio.timeout(_START_S):
            words = (await server.stdout.readline()).decode().split()
        return int(words[words.index("port") + 1])
    except (TimeoutError, ValueError, IndexError):
        raise SubstrateError(f"no HTTP server for the seed repository came up on {HOST}; t2 needs none") from None
