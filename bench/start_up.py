"""What starting Excise costs: python bench/start_up.py [BLOCKS]

Each block runs every command once, in random order; `python -c pass` is one of them, and what an import costs is its
command's time minus that one's in the same block. Raw times go to docs/results/seam/start_up.json.
"""

import json
import os
import random
import sys
import time
from pathlib import Path

import msgspec

from excise.meter.provenance import provenance
from excise.stats.quantile import quantile

RESULTS = Path(__file__).parents[1] / "docs/results/seam/start_up.json"
SEED = 20261115
BIN = Path(sys.executable).parent

COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "import excise": [sys.executable, "-c", "import excise"],
    "from excise import Sandbox": [sys.executable, "-c", "from excise import Sandbox"],
    "excise --help": [str(BIN / "excise"), "--help"],
}
PROMISES_MS = {"import excise": 80, "from excise import Sandbox": 80, "excise --help": 300}


def wall_ms(argv: list[str]) -> float:
    """From spawn to reaped, without pipes: nothing of the measuring process is in it but the two calls."""
    quiet = [(os.POSIX_SPAWN_OPEN, descriptor, os.devnull, os.O_WRONLY, 0) for descriptor in (1, 2)]
    start_ns = time.monotonic_ns()
    pid = os.posix_spawn(argv[0], argv, os.environ, file_actions=quiet)
    _, status = os.waitpid(pid, 0)
    took_ms = (time.monotonic_ns() - start_ns) / 1e6
    if status:
        raise SystemExit(f"{' '.join(argv)} failed with status {status}")
    return took_ms


def measure(blocks: int) -> dict[str, list[float]]:
    order = random.Random(SEED)
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for argv in COMMANDS.values():
        wall_ms(argv)  # byte code is compiled and the page cache filled before the first block
    for _ in range(blocks):
        for name in order.sample(sorted(COMMANDS), len(COMMANDS)):
            times[name].append(wall_ms(COMMANDS[name]))
    return times


def main() -> None:
    times = measure(int(sys.argv[1]) if len(sys.argv) > 1 else 30)
    floor = times["python -c pass"]
    summary: dict[str, dict[str, float | None]] = {}
    for name, own in times.items():
        # An import is what it adds to the bare interpreter; a command is what its user waits for.
        added = [a - b for a, b in zip(own, floor, strict=True)] if "import" in name else own
        estimate = quantile(added, 0.5)
        assert estimate is not None, "more blocks are needed for an interval"
        limit_ms = PROMISES_MS.get(name)
        summary[name] = {"p50_ms": estimate.value, "low_ms": estimate.low, "high_ms": estimate.high, "promise_ms": limit_ms}
        verdict = "" if limit_ms is None else f"   promised: under {limit_ms} ms"
        print(f"{name:28} {estimate} ms{verdict}")
    host = msgspec.to_builtins(provenance(RESULTS.parent, {}))
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    record = {"seed": SEED, "n": len(floor), "summary": summary, "times_ms": times, "provenance": host}
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
