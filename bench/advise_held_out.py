"""How far `excise advise` can be believed: workloads of a finished run are held out, predicted from others, and compared.

python bench/advise_held_out.py [RESULTS] [--out FILE]
"""

import argparse
import sys
from pathlib import Path

import msgspec

from excise.economics.held_out import held_out, median_error
from excise.stats.run import Run

PAIRS = (
    ("t0", "t1"),
    ("t0", "t2"),
    ("t1", "t2"),
    ("t2", "t2?actions=50"),
    ("t2", "t2?actions=150"),
    ("t2?actions=50", "t2?actions=150"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="?", default=Path("docs/results/paper"))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    run = Run.read(given.results)
    every = []
    for known, target in PAIRS:
        found = held_out(run, known, target)
        if not found:
            continue
        every.append(
            {
                "known": known,
                "held_out": target,
                "median_error": median_error(found),
                "intervals_that_hold": sum(one.holds for one in found),
                "of": len(found),
                "predictions": found,
            }
        )
        print(f"{target} from {known}: median error {100 * median_error(found):.1f} %")
        for one in found:
            print(f"  {one.address:14} predicted {one.predicted_s:7.3f} s, measured {one.measured_s:7.3f} s, ratio {one.ratio}")
    if given.out:
        about = {"run": run.header.id, "results": str(given.results), "blocks": run.blocks, "pairs": every}
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_bytes(msgspec.json.format(msgspec.json.encode(about), indent=1) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
