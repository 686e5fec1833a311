"""What pulling an image costs beside `docker pull`: both from one registry on loopback, in turn, into empty stores.

    python bench/pull.py [--gib 1.0] [--blocks 5] [--out FILE]

Needs docker-registry and a Docker daemon. A second image that shares nine tenths of the first says what sharing saves. Exit
code 1 when the median ratio is above what SPECIFICATION.md promises.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from excise.storage.layers.jobs import Remove
from excise.storage.layers.workers import Workers
from excise.storage.oci.pull import pull
from oci_image import FORMATS, build, entry, push, tar

MOST_RATIO = 1.3
SMALL_BYTES = 12_000
SEED = 5


@contextlib.contextmanager
def registry(place: Path) -> Iterator[str]:
    """A docker-registry on loopback."""
    program = shutil.which("docker-registry")
    if program is None:
        raise SystemExit("apt-get install docker-registry")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = place / "config.yml"
    config.write_text(
        f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {place}/data}}}}\n"
        f"http: {{addr: '127.0.0.1:{port}'}}\n"
    )
    with subprocess.Popen([program, "serve", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            while True:
                with contextlib.suppress(ConnectionRefusedError):
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
            yield f"127.0.0.1:{port}"
        finally:
            server.terminate()


def layer(chance: random.Random, name: str, size: int) -> bytes:
    """Half of it small files as of a language's packages, half a few large ones; a third of the bytes compress."""
    small = size // 2 // SMALL_BYTES

    def content(count: int) -> bytes:
        return chance.randbytes(count * 2 // 3) + b"a line of text, again\n" * (count // 3 // 22)

    entries = [entry(f"{name}/{number // 100}/{number}.py", content(SMALL_BYTES)) for number in range(small)]
    entries += [entry(f"{name}/large-{number}", content(size // 8)) for number in range(4)]
    return tar(*entries)


def ours(name: str, home: Path) -> float:
    os.environ["EXCISE_HOME"] = str(home)
    began = time.monotonic()
    (one,) = asyncio.run(pull([name], jobs=4))
    took = time.monotonic() - began
    if one.error is not None:
        raise one.error
    return took


def theirs(name: str) -> float:
    began = time.monotonic()
    subprocess.run(["docker", "pull", "--quiet", name], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


async def removed(home: Path) -> None:
    async with Workers(1) as workers:
        await workers.run(Remove(str(home)))


def block(names: tuple[str, str], place: Path, *, docker_first: bool) -> dict[str, float]:
    """Both images by both, from nothing; who goes first is told."""
    home = place / "home"
    found: dict[str, float] = {}

    def docker_pulls() -> None:
        found["docker_s"], found["docker_second_s"] = theirs(names[0]), theirs(names[1])
        subprocess.run(["docker", "rmi", "--force", *names], check=True, stdout=subprocess.DEVNULL)

    def excise_pulls() -> None:
        found["excise_s"], found["excise_second_s"] = ours(names[0], home), ours(names[1], home)
        asyncio.run(removed(home))

    for one in (docker_pulls, excise_pulls) if docker_first else (excise_pulls, docker_pulls):
        one()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    chance = random.Random(SEED)
    size = int(asked.gib * 2**30 / 10)
    layers = [layer(chance, f"l{number}", size) for number in range(10)]
    with tempfile.TemporaryDirectory() as scratch, registry(Path(scratch)) as address:
        # gzip alone: Docker 20 reads no zstd.
        first, second = build(layers, FORMATS[:1]), build([*layers[:9], layer(chance, "other", size)], FORMATS[:1])
        push(first, f"http://{address}", "first", "1")
        push(second, f"http://{address}", "second", "1")
        names = (f"{address}/first:1", f"{address}/second:1")
        blocks = [block(names, Path(scratch), docker_first=chance.random() < 0.5) for _ in range(asked.blocks)]
    ratio = statistics.median(one["excise_s"] / one["docker_s"] for one in blocks)
    second_part = statistics.median(one["excise_second_s"] / one["excise_s"] for one in blocks)
    made = {"machine": platform.platform(), "gib": asked.gib, "blocks": blocks, "ratio": ratio, "second_part": second_part}
    sys.stdout.write(f"pull: {ratio:.2f} x docker pull (median of {len(blocks)}); a second image, nine tenths shared: ")
    sys.stdout.write(f"{second_part:.2f} of the first\n")
    if asked.out:
        asked.out.write_text(json.dumps(made, indent=1))
    return 0 if ratio <= MOST_RATIO else 1


if __name__ == "__main__":
    raise SystemExit(main())
