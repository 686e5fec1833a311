"""What states and images cost a `namespace` sandbox over a long row: a thousand resets, and creates on images of all sizes.

    python bench/states.py [--resets 1000] [--layers 130] [--gib 4] [--out docs/results/states/states.json]

Resets: each after a hundred changed files, with a session and a background process alive; the floor (a bare spawn of the same
program) before each; what the host's processors did meanwhile, and what is held undeleted at the end. Creates: on the base
image, on one of many layers and on a large one, in turn, as ratios. Exit code 1 when a promise of SPECIFICATION.md is missed.
"""

import argparse
import asyncio
import contextlib
import hashlib
import io
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import zstandard

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from sustained import spec_for

from excise.api import connect
from excise.clock import now_ns
from excise.measuring import floor_of
from excise.meter.host import between, counters
from excise.meter.latency import Floor
from excise.meter.latency_samples import Samples, create
from excise.meter.latency_states import States, answered
from excise.spec import Spec
from excise.stats.jackknife import POSITIVE, Blocks
from excise.storage.home import cache_dir
from excise.storage.image import resolve
from excise.substrate import Substrate
from oci_image import MACHINE, Built, awkward, build, digest, programs, write_layout

BASE = "excise/base"
A_BLOCK = 20
CREATE_BLOCKS = 40
CREATES = 4
"""In each block, of each image."""
MOST_RESET = 2.5
MOST_CREATE = 1.2
MOST_HELD = 16
MEMBER_BYTES = 1 << 26
PIECES = 4


def ratio(above: Sequence[Sequence[int]], below: Sequence[Sequence[int]]) -> dict[str, float | None]:
    """Of the blocks' medians, with its interval over blocks."""
    columns = {"above": [statistics.median(one) for one in above], "below": [statistics.median(one) for one in below]}
    found = Blocks(columns).estimate(lambda sums: sums["above"] / sums["below"], POSITIVE)
    return {"value": found.value, "low": found.low, "high": found.high}


# ---- resets


def held() -> dict[str, int]:
    """What of earlier lives is still there: uppers the launcher holds, memory of files, saved layers that wait for removal."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    launcher = next(pid for pid in children if Path(f"/proc/{pid}/comm").read_text() == "excise-launch\n")
    shared = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("Shmem:"))
    return {
        "launcher_descriptors": len(list(Path(f"/proc/{launcher}/fd").iterdir())),
        "shared_memory_kib": int(shared.split()[1]),
        "saved_layers_to_remove": len(list((cache_dir() / "saved").glob("*/.gone-*"))),
    }


async def resets(substrate: Substrate, spec: Spec, floor: Floor, count: int) -> dict[str, Any]:
    states = await States.begin(substrate, spec)
    blocks: list[dict[str, list[int]]] = []
    try:
        await states.back()
        await answered(states.origin)
        before, used, begun = held(), counters(), time.perf_counter()
        busy_s = 0.0
        for number in range(count):
            if number % A_BLOCK == 0:
                blocks.append({"floor_ns": [], "took_ns": [], "first_answer_ns": []})
            seen = blocks[-1]
            seen["floor_ns"].append(floor())
            await states.changed(lively=True)
            cpu, at = counters(), now_ns()
            await states.back()
            seen["took_ns"].append(now_ns() - at)
            await answered(states.origin)
            seen["first_answer_ns"].append(now_ns() - at)
            busy_s += between(cpu, counters()).busy_s
        after, all_used, took_s = held(), between(used, counters()), time.perf_counter() - begun
    finally:
        await states.close()
    return {
        "resets": count,
        "to_floor": ratio([one["took_ns"] for one in blocks], [one["floor_ns"] for one in blocks]),
        "with_first_answer_to_floor": ratio([one["first_answer_ns"] for one in blocks], [one["floor_ns"] for one in blocks]),
        "seconds": took_s,
        "cpu_s_during_resets": busy_s,
        "cpu_s_of_all": all_used.busy_s,
        "held_before": before,
        "held_after": after,
        "blocks": blocks,
    }


# ---- creates


def large(gib: float, env: list[str], place: Path) -> Path:
    """An image with a layer of so many GiB, which compresses well, but not as what is refused as a bomb does."""
    hashed, packed, chance = hashlib.sha256(), io.BytesIO(), random.Random(6)

    class Both(io.RawIOBase):
        def __init__(self, sink: Any) -> None:
            self._sink = sink

        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            hashed.update(data)
            return self._sink.write(bytes(data))

    with (
        zstandard.ZstdCompressor().stream_writer(packed, closefd=False) as sink,
        tarfile.open(fileobj=Both(sink), mode="w|", format=tarfile.PAX_FORMAT) as archive,  # pyright: ignore[reportArgumentType]
    ):
        for number in range(int(gib * (1 << 30)) // MEMBER_BYTES):
            info = tarfile.TarInfo(f"large-{number}")
            info.size = MEMBER_BYTES
            piece = b"".join(chance.randbytes(4096) + bytes(60 << 10) for _ in range(MEMBER_BYTES // PIECES >> 16))
            archive.addfile(info, io.BytesIO(piece * PIECES))
    with_programs = build([programs("/usr/bin/echo")], Env=env)
    config = json.loads(with_programs.config)
    config["rootfs"]["diff_ids"].append(f"sha256:{hashed.hexdigest()}")
    config["architecture"] = MACHINE
    body, blob = json.dumps(config).encode(), packed.getvalue()
    manifest = json.loads(with_programs.manifest)
    manifest["config"] = {**manifest["config"], "digest": digest(body), "size": len(body)}
    media_type = "application/vnd.oci.image.layer.v1.tar+zstd"
    manifest["layers"].append({"mediaType": media_type, "digest": digest(blob), "size": len(blob)})
    return write_layout(Built(json.dumps(manifest).encode(), body, (), (*with_programs.blobs, blob)), place)


@contextlib.contextmanager
def images(layers: int, gib: float, env: list[str]) -> Iterator[dict[str, str]]:
    """Made for this run, and taken out of the cache after it."""
    made = {"base": BASE}
    with tempfile.TemporaryDirectory(prefix="excise-bench-") as text:
        place = Path(text)
        layered = build([programs("/usr/bin/echo"), *awkward(layers - 1)], Env=env)
        made[f"{layers} layers"] = str(write_layout(layered, place / "layered"))
        if gib:
            made[f"{gib:g} GiB"] = str(large(gib, env, place / "large"))
        try:
            yield made
        finally:
            program = [sys.executable, "-m", "excise.cli.entry", "image", "rm"]
            for name in made.values():
                if name != BASE:
                    subprocess.run([*program, name], check=False, capture_output=True, timeout=120)


async def creates(substrate: Substrate, spec: Spec, floor: Floor, made: dict[str, str]) -> dict[str, Any]:
    specs = {label: msgspec.structs.replace(spec, image=name) for label, name in made.items()}
    for one in specs.values():
        await a_create(substrate, one, Samples())  # resolves it, once
    seen: dict[str, list[Samples]] = {label: [] for label in specs}
    chance = random.Random(5)
    for _ in range(CREATE_BLOCKS):
        for label in chance.sample(sorted(specs), len(specs)):
            samples = Samples()
            for _ in range(CREATES):
                samples.floor_ns.append(floor())
                await a_create(substrate, specs[label], samples)
            seen[label].append(samples)
    base = [one.took_ns for one in seen["base"]]
    return {
        "to_base": {label: ratio([one.took_ns for one in taken], base) for label, taken in seen.items() if label != "base"},
        "to_floor": {label: ratio([s.took_ns for s in taken], [s.floor_ns for s in taken]) for label, taken in seen.items()},
        "blocks": {label: [msgspec.to_builtins(one) for one in taken] for label, taken in seen.items()},
    }


async def a_create(substrate: Substrate, spec: Spec, into: Samples) -> None:
    begun = now_ns()
    handle = await create(substrate, spec)
    try:
        await answered(handle)
        into.took_ns.append(now_ns() - begun)
    finally:
        closing = now_ns()
        await handle.close()
        into.close_ns.append(now_ns() - closing)


# ---- the run


async def measured(given: argparse.Namespace) -> dict[str, Any]:
    base = await resolve(BASE)
    floor = await floor_of(BASE, "echo")
    env = [f"{name}={value}" for name, value in base.env.items()]
    with images(given.layers, given.gib, env) as made:
        async with connect("namespace") as substrate:
            spec = await spec_for(substrate, BASE)
            row = await resets(substrate, spec, floor, given.resets)
            on_images = await creates(substrate, spec, floor, made)
    about = {"kernel": platform.release(), "cores": os.cpu_count(), "privileged": os.geteuid() == 0}
    return {**about, "limits": sorted(spec.limits.asked()), "resets": row, "creates": on_images}


def said(name: str, found: dict[str, Any]) -> str:
    ends = f" [{found['low']:.2f}, {found['high']:.2f}]" if found["low"] is not None else ""
    return f"{name}: {found['value']:.2f} x{ends}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resets", type=int, default=1000)
    parser.add_argument("--layers", type=int, default=130)
    parser.add_argument("--gib", type=float, default=4.0, help="size of the large image; 0: none")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = asyncio.run(measured(given))
    row = found["resets"]
    left = row["held_after"]["launcher_descriptors"] - row["held_before"]["launcher_descriptors"]
    print(said(f"{row['resets']} resets, to floor", row["to_floor"]))
    print(said("with a first answer, to floor", row["with_first_answer_to_floor"]))
    print(f"{row['cpu_s_during_resets'] / row['resets'] * 1e3:.2f} ms of CPU a reset, host-wide; {left} uppers held at the end")
    print(f"before {row['held_before']}, after {row['held_after']}")
    for label, one in found["creates"]["to_base"].items():
        print(said(f"create on {label}, to base", one))
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(found) + "\n")
    slow = row["to_floor"]["value"] > MOST_RESET or left >= MOST_HELD
    return int(slow or any(one["value"] > MOST_CREATE for one in found["creates"]["to_base"].values()))


if __name__ == "__main__":
    sys.exit(main())
