"""What becomes of actions when a client, a connection or the server dies under load, at random moments.

    python bench/serve_killed.py [--points 200] [--seed 1] [--out FILE]

Every action appends its own number to a file of this machine (`local` is served: its sandboxes see it), so that one which ran
twice is seen, whoever was told what. Then it lingers for a while under a name of its own, so that one which outlived its
sandbox is seen. At each point one of the three is killed; then all that is left is closed, and counted:

answered    it ran once, and its client was told
lost        its client was told SandboxLost, or that the server is away: sample again
untyped     its client was told anything else                       must be 0
phantom     its client was told that it ran, and it had not         must be 0
doubled     it ran more than once                                   must be 0
orphaned    a process of it was alive when all was closed           must be 0
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from excise.api import connect
from excise.errors import SandboxLost, SubstrateError
from excise.sandbox import Sandbox

ACTORS = 8
LEASE_S = 2.0
TAG = "EXCISE_KILLED"
CLIENT = """
import asyncio, sys
sys.path[:0] = {path!r}
from serve_killed import acting
asyncio.run(acting(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""
SERVE = "import sys; from excise.cli import main; sys.exit(main())"


async def actor(url: str, place: str, number: int, told: Counter[str]) -> None:
    """One sandbox, and actions in it for as long as it lives."""
    try:
        async with connect(url) as substrate, Sandbox(substrate, ttl_s=LEASE_S, wait_s=20) as box:
            for count in range(10_000):
                name = f"{number}-{count}"
                await box.renew(LEASE_S)
                script = f"echo {name} >> {place}/ran; sleep 0.0{count % 7}1"
                seen = await box.run(script, timeout_s=20, env={TAG: place})
                _note(place, name)
                told["answered" if seen.ok else "untyped"] += 1
    except (SandboxLost, SubstrateError):
        told["lost"] += 1
    except Exception as error:  # noqa: BLE001 - which must not be
        told["untyped"] += 1
        told[f"untyped: {type(error).__name__}: {error}"[:200]] += 1


def _note(place: str, name: str) -> None:
    with Path(f"{place}/answered").open("a") as file:
        file.write(f"{name}\n")


async def acting(url: str, place: str, first: int) -> None:
    told: Counter[str] = Counter()
    await asyncio.gather(*(actor(url, place, first + n, told) for n in range(ACTORS)))


class Hop:
    """Passes bytes on, and is cut."""

    def __init__(self, port: int) -> None:
        self._there = port
        self._open: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            there_reader, there = await asyncio.open_connection("127.0.0.1", self._there)
            self._open |= {writer, there}
            await asyncio.gather(self._pass(reader, there), self._pass(there_reader, writer))
            self._open -= {writer, there}

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.transport.abort()

    def cut(self) -> None:
        for one in tuple(self._open):
            one.transport.abort()

    def close(self) -> None:
        self._server.close()
        self.cut()


async def served(place: str, port: int) -> tuple[asyncio.subprocess.Process, str]:
    words = ("serve", "local", "--listen", f"127.0.0.1:{port}", "--state", place, "--own-key", f"{place}/key", "--drain", "0s")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVE, *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert process.stdout is not None
    assert await process.stdout.readline()
    return process, _key(place)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


def _key(place: str) -> str:
    return Path(f"{place}/key").read_text().strip()


def alive(place: str) -> list[int]:
    """Processes of actions, by a variable that they were given."""
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"{TAG}={place}".encode() in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
    return found


async def point(kind: str, dice: random.Random, told: Counter[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="killed") as place:
        port = _free_port()
        server, key = await served(place, port)
        os.environ["EXCISE_KEY"] = key
        hop = Hop(port)
        await hop.open()
        own: Counter[str] = Counter()
        try:
            if kind == "client":
                await _client_dies(f"http://127.0.0.1:{hop.port}", place, dice)
            else:
                await _the_way_dies(hop, server if kind == "server" else None, place, dice, own)
        finally:
            hop.close()
            await _ended(server)
        if kind == "server":  # what it left is the next one's to clean up
            await _ended((await served(place, port))[0])
        told.update(own + _counted(place, kind, await _left(place)))
        told["points"] += 1


async def _client_dies(url: str, place: str, dice: random.Random) -> None:
    code = CLIENT.format(path=[str(Path(__file__).parent)])
    client = await asyncio.create_subprocess_exec(sys.executable, "-c", code, url, place, "0")
    await asyncio.sleep(0.6 + dice.uniform(0.05, 0.8))
    client.send_signal(signal.SIGKILL)
    await client.wait()
    await asyncio.sleep(LEASE_S + 0.5)


async def _the_way_dies(
    hop: Hop, server: asyncio.subprocess.Process | None, place: str, dice: random.Random, own: Counter[str]
) -> None:
    url = f"http://127.0.0.1:{hop.port}"
    tasks = [asyncio.ensure_future(actor(url, place, n, own)) for n in range(ACTORS)]
    await asyncio.sleep(dice.uniform(0.05, 0.8))
    if server is not None:
        server.kill()
        await server.wait()
    else:
        for _ in range(dice.randint(1, 4)):
            hop.cut()
            await asyncio.sleep(dice.uniform(0.0, 0.3))
    await asyncio.sleep(dice.uniform(0.0, 0.2))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _ended(server: asyncio.subprocess.Process) -> None:
    if server.returncode is None:
        server.send_signal(signal.SIGTERM)
    await server.communicate()


async def _left(place: str) -> int:
    """How many processes of actions are alive, after a moment to die in."""
    for _ in range(40):
        if not alive(place):
            break
        await asyncio.sleep(0.05)
    return len(alive(place))


def _counted(place: str, kind: str, orphaned: int) -> Counter[str]:
    ran, answered = Counter(_lines(place, "ran")), _lines(place, "answered")
    own = Counter(orphaned=orphaned, doubled=sum(count > 1 for count in ran.values()))
    own["phantom"] = sum(name not in ran for name in answered)
    if kind == "client":
        own["answered"] = len(answered)
    return own


def _lines(place: str, name: str) -> list[str]:
    path = Path(place) / name
    return path.read_text().split() if path.exists() else []


async def measured(given: argparse.Namespace) -> dict[str, Any]:
    dice = random.Random(given.seed)
    found: dict[str, Counter[str]] = {kind: Counter() for kind in ("client", "connection", "server")}
    for number in range(given.points):
        kind = tuple(found)[number % 3]
        await point(kind, dice, found[kind])
        if number % 20 == 19:
            print(f"{number + 1} points: {json.dumps({kind: dict(counts) for kind, counts in found.items()})}", flush=True)
    return {kind: dict(counts) for kind, counts in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = asyncio.run(measured(given))
    print(json.dumps(found, indent=2))
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps({"seed": given.seed, **found}, indent=2) + "\n")
    return int(any(found[kind].get(bad, 0) for kind in found for bad in ("untyped", "phantom", "doubled", "orphaned")))


if __name__ == "__main__":
    raise SystemExit(main())
