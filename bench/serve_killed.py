"""What becomes of actions when a client, a connection or the server dies under load, at random moments.

    python bench/serve_killed.py [--points 200] [--seed 1] [--out FILE]

Every action appends its own number to a file of this machine (`local` is served: its sandboxes see it), so that one which ran
twice is seen, whoever was told what. It leaves a process running that would not end for minutes, so that what outlived its
sandbox is seen. At each point one of the three is killed; what is left must go by itself (the client's with their leases, the
server's with its end or the next one's beginning, a connection's with its sandbox), and is counted:

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
from excise.server.keys import Key, add, digest, fresh
from excise.substrates.hosted.hop import Hop

ACTORS = 8
LEASE_S = 2.0
TAG = "EXCISE_KILLED"
CLIENT = """
import asyncio, sys
sys.path[:0] = {path!r}
from serve_killed import acting
print("imported", flush=True)
sys.stdin.readline()
asyncio.run(acting(sys.argv[1], sys.argv[2]))
"""
SERVE = "import sys; from excise.cli import main; sys.exit(main())"
KINDS = ("client", "connection", "server")
BAD = ("untyped", "phantom", "doubled", "orphaned")


async def actor(url: str, place: str, number: int, told: Counter[str], over: asyncio.Event) -> None:
    """One sandbox, and actions in it until it is lost, or `over`; each is answered, or told lost, before this returns."""
    try:
        async with connect(url) as substrate, Sandbox(substrate, ttl_s=LEASE_S, wait_s=20) as box:
            for count in range(10_000):
                if over.is_set():
                    return
                name = f"{number}-{count}"
                left = "sleep 300 >/dev/null 2>&1 & " if count % 4 == 0 else ""
                script = f"echo {name} >> {place}/ran; {left}sleep 0.0{count % 7}1"
                await box.renew(LEASE_S)
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


async def acting(url: str, place: str) -> None:
    told, never = Counter[str](), asyncio.Event()
    await asyncio.gather(*(actor(url, place, number, told, never) for number in range(ACTORS)))


# ---- what is killed


class Server:
    """One after the other at the same port, on the same state."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._process: asyncio.subprocess.Process | None = None
        with socket.create_server(("127.0.0.1", 0)) as one:
            self.port: int = one.getsockname()[1]

    async def start(self) -> None:
        place = self._place
        listen = ("--listen", f"127.0.0.1:{self.port}", "--keys", f"{place}/keys.json", "--state", place, "--drain", "0s")
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            SERVE,
            "serve",
            "local",
            *listen,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        assert await self._process.stdout.readline()

    async def stop(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        await self._process.communicate()


async def moment(place: str, dice: random.Random) -> None:
    """At any time: of one in four while sandboxes are made, of the others while actions run."""
    if dice.random() < 0.75:
        while not _lines(place, "ran"):  # noqa: ASYNC110 - a file of other processes'
            await asyncio.sleep(0.01)
    await asyncio.sleep(dice.uniform(0.0, 0.7))


async def client_dies(server: Server, place: str, dice: random.Random, told: Counter[str]) -> None:
    code = CLIENT.format(path=[str(Path(__file__).parent)])
    pipe = asyncio.subprocess.PIPE
    url = f"http://127.0.0.1:{server.port}"
    client = await asyncio.create_subprocess_exec(sys.executable, "-c", code, url, place, stdin=pipe, stdout=pipe)
    assert client.stdin is not None
    assert client.stdout is not None
    await client.stdout.readline()
    client.stdin.write(b"go\n")
    await moment(place, dice)
    client.kill()
    await client.wait()
    told["answered"] += len(_lines(place, "answered"))
    await asyncio.sleep(LEASE_S + 0.5)  # nobody renews


async def connection_dies(server: Server, place: str, dice: random.Random, told: Counter[str]) -> None:
    hop, over = Hop(server.port), asyncio.Event()
    try:
        actors = _begun(f"http://127.0.0.1:{hop.port}", place, told, over)
        await moment(place, dice)
        for _ in range(dice.randint(1, 4)):
            if dice.random() < 0.5:
                hop.cut()
            else:
                hop.cut_after(dice.randint(1, 2000))
            await asyncio.sleep(dice.uniform(0.0, 0.3))
        over.set()
        await asyncio.gather(*actors)
    finally:
        hop.close()


async def server_dies(server: Server, place: str, dice: random.Random, told: Counter[str]) -> None:
    """Its clients wait for it, and learn from the next one that theirs are gone."""
    actors = _begun(f"http://127.0.0.1:{server.port}", place, told, asyncio.Event())
    await moment(place, dice)
    await server.stop(signal.SIGKILL)
    await server.start()
    await asyncio.gather(*actors)


def _begun(url: str, place: str, told: Counter[str], over: asyncio.Event) -> list["asyncio.Future[None]"]:
    return [asyncio.ensure_future(actor(url, place, number, told, over)) for number in range(ACTORS)]


# ---- what is counted


def alive(place: str) -> list[int]:
    """Processes of actions, by a variable that they were given."""
    found: list[int] = []
    mark = f"{TAG}={place}".encode()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
    return found


async def point(kind: str, server: Server, dice: random.Random) -> Counter[str]:
    with tempfile.TemporaryDirectory(prefix="killed") as place:
        told: Counter[str] = Counter(points=1)
        await {"client": client_dies, "connection": connection_dies, "server": server_dies}[kind](server, place, dice, told)
        for _ in range(40):  # a moment to die in
            if not alive(place):
                break
            await asyncio.sleep(0.05)
        return told + counted(place, len(alive(place)))


def counted(place: str, orphaned: int) -> Counter[str]:
    ran, answered = Counter(_lines(place, "ran")), _lines(place, "answered")
    own = Counter(orphaned=orphaned, doubled=sum(count > 1 for count in ran.values()))
    own["phantom"] = sum(name not in ran for name in answered)
    return own


def _lines(place: str, name: str) -> list[str]:
    path = Path(place) / name
    return path.read_text().split() if path.exists() else []


async def measured(given: argparse.Namespace) -> dict[str, Any]:
    """In rounds: a client and a connection at the same time, then the server, whose next one serves the next round."""
    dice = random.Random(given.seed)
    found: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    with tempfile.TemporaryDirectory(prefix="killed-server") as place:
        os.environ["EXCISE_KEY"] = key = fresh()
        add(Path(place) / "keys.json", Key(name="bench", sha256=digest(key), sandboxes=4096))
        server = Server(place)
        await server.start()
        try:
            for first in range(0, given.points, len(KINDS)):
                count = min(len(KINDS), given.points - first)
                seeds = [random.Random(dice.random()) for _ in KINDS]
                pair = zip(KINDS[: min(2, count)], seeds, strict=False)
                got = list(await asyncio.gather(*(point(kind, server, own) for kind, own in pair)))
                if count == len(KINDS):
                    got.append(await point("server", server, seeds[2]))
                for kind, told in zip(KINDS, got, strict=False):
                    found[kind].update(told)
                if first % 30 == 0:
                    print(
                        f"{first + count} points: {json.dumps({kind: dict(told) for kind, told in found.items()})}", flush=True
                    )
        finally:
            await server.stop(signal.SIGTERM)
    return {kind: dict(told) for kind, told in found.items()}


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
    return int(any(found[kind].get(bad, 0) for kind in found for bad in BAD))


if __name__ == "__main__":
    raise SystemExit(main())
