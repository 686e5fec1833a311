"""A server under open-loop load over many live sandboxes, client and server on the same cores.

    python bench/serve_load.py [--sandboxes 1024] [--session 1500] [--exec 500] [--for 20] [--saturate] [--soak 600] [--out F]

Actions begin when they are due, whether or not those before them have ended, and are timed from then: session `:` and Exec
`true` at their own rates, each in the next sandbox in turn. `--saturate` raises both rates together until half of a second's
actions are late by more than a second, and prints the last rate that was not. `--soak` then holds half of that for so long,
and prints the slopes of memory and descriptors of the server and of this process. Exit code 1 when p95 is 50 ms or more.
"""

import argparse
import asyncio
import heapq
import json
import os
import resource
import statistics
import time
from pathlib import Path
from typing import Any

from excise.action import Action, Exec, Shell
from excise.api import connect
from excise.sandbox import Sandbox
from excise.spec import Spec

MOST_P95_S = 0.05
SESSION: Action = Shell(":", session="main", timeout_s=60)
EXEC: Action = Exec(("true",), timeout_s=60)


class Load:
    """Actions in turn over all sandboxes."""

    def __init__(self, boxes: list[Sandbox], *, keep: bool = True) -> None:
        """`keep`: what each took; for ten minutes that alone would grow."""
        self._boxes = boxes
        self._keep = keep
        self._next = 0
        self.took: dict[str, list[float]] = {"session": [], "exec": []}
        self.failed: list[str] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def drive(self, rates: dict[str, float], for_s: float) -> None:
        """Until all that was due has ended."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        each = ([(n / rate, name) for n in range(int(rate * for_s))] for name, rate in rates.items() if rate)
        for at_s, name in heapq.merge(*each):
            if (left := begun + at_s - loop.time()) > 0:
                await asyncio.sleep(left)
            task = loop.create_task(self._one(name, begun + at_s))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _one(self, name: str, due_s: float) -> None:
        self._next += 1
        box = self._boxes[self._next % len(self._boxes)]
        try:
            seen = await box.run(SESSION if name == "session" else EXEC)
            assert seen.ok
        except Exception as error:  # noqa: BLE001 - counted, whatever it is
            self.failed.append(f"{type(error).__name__}: {error}")
        if self._keep:
            self.took[name].append(asyncio.get_running_loop().time() - due_s)


def quantiles(seconds: list[float]) -> dict[str, float]:
    marks = statistics.quantiles(seconds, n=100)
    return {"n": len(seconds), "p50_ms": marks[49] * 1e3, "p95_ms": marks[94] * 1e3, "p99_ms": marks[98] * 1e3}


def seen_of(pid: int) -> tuple[int, int]:
    """Resident bytes and open descriptors."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def slope(points: list[tuple[float, float]]) -> dict[str, float]:
    """By least squares over means of twenty windows, with an interval of two standard errors: neighbours are alike."""
    size = max(1, len(points) // 20)
    means = [
        tuple(statistics.fmean(column) for column in zip(*points[at : at + size], strict=True))
        for at in range(0, len(points), size)
    ]
    xs, ys = [one[0] for one in means], [one[1] for one in means]
    fit = statistics.linear_regression(xs, ys)
    errors = [y - fit.slope * x - fit.intercept for x, y in zip(xs, ys, strict=True)]
    spread = sum((x - statistics.fmean(xs)) ** 2 for x in xs)
    error = (sum(e * e for e in errors) / max(1, len(xs) - 2) / spread) ** 0.5 if spread else 0.0
    return {"per_s": fit.slope, "low": fit.slope - 2.1 * error, "high": fit.slope + 2.1 * error}


async def soak(load: Load, rates: dict[str, float], for_s: float, pids: dict[str, int]) -> dict[str, Any]:
    points: dict[str, list[tuple[float, float]]] = {f"{who}_{what}": [] for who in pids for what in ("bytes", "descriptors")}
    driving = asyncio.ensure_future(load.drive(rates, for_s))
    begun = time.monotonic()
    while not driving.done():
        await asyncio.sleep(1)
        at = time.monotonic() - begun
        if at > for_s / 10:  # what grows at first, once, is no slope
            for who, pid in pids.items():
                for what, value in zip(("bytes", "descriptors"), seen_of(pid), strict=True):
                    points[f"{who}_{what}"].append((at, value))
    return {name: {**slope(found), "first": found[0][1], "last": found[-1][1]} for name, found in points.items()}


async def saturated(boxes: list[Sandbox], rates: dict[str, float]) -> float:
    """The largest multiple of the rates at which half of the last second's actions were not late."""
    last, times = 0.0, 0.5
    while times < 20:
        load = Load(boxes)
        await load.drive({name: rate * times for name, rate in rates.items()}, 5.0)
        late = [took for took in load.took["session"][-200:] + load.took["exec"][-200:] if took > 1.0]
        print(
            f"  at {times * sum(rates.values()):.0f} a second: {quantiles(load.took['session'])['p95_ms']:.1f} ms session p95"
        )
        if len(late) > 200 or load.failed:
            return last
        last, times = times * sum(rates.values()), times * 1.25
    return last


async def opened(boxes: list[Sandbox]) -> None:
    for at in range(0, len(boxes), 64):
        await asyncio.gather(*(box.open() for box in boxes[at : at + 64]))
    for at in range(0, len(boxes), 64):
        await asyncio.gather(*(box.run(SESSION) for box in boxes[at : at + 64]))


async def measured(given: argparse.Namespace) -> dict[str, Any]:
    rates = {"session": given.session, "exec": given.exec}
    async with connect("hosted:namespace") as substrate:
        boxes = [Sandbox(substrate, Spec(image=given.image), ttl_s=7200) for _ in range(given.sandboxes)]
        try:
            await opened(boxes)
            print(f"{len(boxes)} sandboxes are open")
            load = Load(boxes)
            await load.drive(rates, 3.0)  # which warms up
            load = Load(boxes)
            await load.drive(rates, given.for_)
            found: dict[str, Any] = {"rates": rates, "sandboxes": len(boxes), "failed": load.failed[:5]}
            found |= {name: quantiles(took) for name, took in load.took.items() if took}
            if given.saturate:
                found["saturation_per_s"] = await saturated(boxes, rates)
            if given.soak:
                half = found.get("saturation_per_s", 2 * sum(rates.values())) / 2 / sum(rates.values())
                server = substrate._processes[0].pid  # type: ignore[attr-defined] - of our own making
                pids = {"server": server, "client": os.getpid()}
                found["soak"] = await soak(Load(boxes, keep=False), {n: r * half for n, r in rates.items()}, given.soak, pids)
        finally:
            for at in range(0, len(boxes), 64):
                await asyncio.gather(*(box.close() for box in boxes[at : at + 64]), return_exceptions=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sandboxes", type=int, default=1024)
    parser.add_argument("--session", type=float, default=1500)
    parser.add_argument("--exec", type=float, default=500)
    parser.add_argument("--for", dest="for_", type=float, default=20)
    parser.add_argument("--image", default="excise/base")
    parser.add_argument("--saturate", action="store_true")
    parser.add_argument("--soak", type=float, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65536)), hard))
    found = asyncio.run(measured(given))
    print(json.dumps(found, indent=2))
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(found, indent=2) + "\n")
    return int(
        bool(found["failed"]) or any(found[name]["p95_ms"] >= MOST_P95_S * 1e3 for name in ("session", "exec") if name in found)
    )


if __name__ == "__main__":
    raise SystemExit(main())
