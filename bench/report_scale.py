"""How long a report's numbers take, and how much memory, over 10,000 trials of 150 actions (1.5 million spans).

    python bench/report_scale.py                        makes synthetic results in a temporary directory and reads them
    python bench/report_scale.py --trials 1000          fewer
    python bench/report_scale.py --keep DIR             leaves the results in DIR, for `excise report DIR`
    python bench/report_scale.py --command report       measures `excise report` on them, page and all
    python bench/report_scale.py --json FILE            writes what was measured there too

Promised: under 20 s and 512 MiB for all of it. Making the results is not in the figures.
"""

import argparse
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from excise.meter.records import Cell
from excise.meter.results import Writer

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from made_results import made_header, made_trial

ADDRESSES = ("chroot", "local", "bubblewrap", "docker", "docker+guest", "namespace", "runc", "gvisor", "vm", "pool:docker")
EXCISE = str(Path(sys.executable).parent / "excise")
PROMISED_S, PROMISED_BYTES = 20.0, 512 * 2**20
READ = """
import resource, sys, time
from pathlib import Path
begun = time.perf_counter()
from excise.stats.ladder import ladder
from excise.stats.projection import sensitivity
from excise.stats.run import Run
from excise.stats.whatif import what_ifs
run = Run.read(Path(sys.argv[1]))
read = time.perf_counter()
rows = run.rows, run.quiet_rows
found = what_ifs(run.rows), ladder(run.rows), [sensitivity(row.costs) for row in run.rows if row.costs]
print(f"{sum(row.n for row in run.rows)} trials: reading {read - begun:.1f} s, numbers {time.perf_counter() - read:.1f} s")
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--actions", type=int, default=148, help="with create, ready and cleanup this makes 151 spans")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--command", nargs="+", help="an excise command that reads the results, in place of the numbers alone")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        path = asked.keep or Path(scratch) / "run"
        made = make(path, asked.trials, asked.actions)
        size_bytes = (path / "trials.jsonl").stat().st_size
        print(f"{made} trials, {size_bytes / 2**20:.0f} MiB of them")
        command = [sys.executable, "-c", READ] if asked.command is None else [EXCISE, *asked.command]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        begun = time.perf_counter()
        done = subprocess.run([*command, str(path)], check=False, cwd=scratch)
        took_s = time.perf_counter() - begun
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    peak = after.ru_maxrss * 1024
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if asked.json is not None:
        found = {
            "command": "excise " + " ".join(asked.command) if asked.command else "the numbers alone",
            "trials": made,
            "spans": made * (asked.actions + 3),
            "results_bytes": size_bytes,
            "wall_s": round(took_s, 2),
            "cpu_s": round(cpu_s, 2),
            "peak_bytes": peak,
            "promised_s": PROMISED_S,
            "promised_bytes": PROMISED_BYTES,
            "load_1min": os.getloadavg()[0],
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "kernel": platform.release(),
            "machine": platform.machine(),
        }
        asked.json.write_text(json.dumps(found, indent=2) + "\n")
    print(f"{took_s:.1f} s and {peak / 2**20:.0f} MiB at most; promised: {PROMISED_S:.0f} s, {PROMISED_BYTES / 2**20:.0f} MiB")
    return int(done.returncode != 0 or took_s > PROMISED_S or peak > PROMISED_BYTES)


def make(path: Path, trials: int, actions: int) -> int:
    """Whole blocks of ten cells, the first of them to warm up."""
    chance = random.Random(0)
    cells = tuple(Cell(address=address, workload=f"t0?actions={actions}") for address in ADDRESSES)
    blocks = max(2, trials // len(cells))
    with Writer(path, made_header(cells)) as writer:
        for block in range(blocks):
            busy = chance.lognormvariate(0, 0.2)
            for position, cell in enumerate(cells):
                more = {"position": position, "noisy": chance.random() < 0.05, "written_bytes": 4096}
                writer.add(made_trial(cell, block, rollout(chance, position, actions), noise=busy, **more))
    return blocks * len(cells)


def rollout(chance: random.Random, position: int, actions: int) -> Iterator[tuple[str, float, float | None, str]]:
    """create, ready, the actions and cleanup, each of one to two milliseconds times the cell's place."""
    for index in range(actions + 3):
        name = "create" if index == 0 else "ready" if index == 1 else "cleanup" if index == actions + 2 else "action"
        took_ms = (1 + position) * (1 + chance.random())
        yield (name, took_ms, took_ms / 2, "exec") if name == "action" else (name, took_ms, None, "")


if __name__ == "__main__":
    sys.exit(main())
