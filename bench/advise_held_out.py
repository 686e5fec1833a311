"""How far `excise advise` can be believed: workloads of a finished run are held out, predicted from others, and compared.

python bench/advise_held_out.py                 print
python bench/advise_held_out.py --write         and write docs/results/advise/held_out.json, and the table in design/advise.md
python bench/advise_held_out.py --check         exit 1 if these are not what the committed results say
"""

import re
import sys
from pathlib import Path
from typing import Any

import msgspec

from excise.economics.held_out import held_out, median_error
from excise.stats.run import Run

ROOT = Path(__file__).parents[1]
RESULTS = "docs/results/paper"
FOUND = ROOT / "docs/results/advise/held_out.json"
DESIGN = ROOT / "design/advise.md"
LONG = "t2?actions=150"
PAIRS = (("t0", "t1"), ("t0", "t2"), ("t1", "t2"), ("t2", "t2?actions=50"), ("t2", LONG), ("t2?actions=50", LONG))
_TABLE = re.compile(r"<!-- held-out:begin -->\n.*?<!-- held-out:end -->", re.DOTALL)


def compared(run: Run) -> dict[str, Any]:
    pairs = [(known, target, held_out(run, known, target)) for known, target in PAIRS]
    every = [
        {
            "known": known,
            "held_out": target,
            "median_error": median_error(found),
            "intervals_that_hold": sum(one.holds for one in found),
            "of": len(found),
            "predictions": msgspec.to_builtins(found),
        }
        for known, target, found in pairs
        if found
    ]
    return {"run": run.header.id, "results": RESULTS, "blocks": run.blocks, "pairs": every}


def table(found: dict[str, Any]) -> str:
    lines = [
        "| held out | predicted from | median error | largest error | intervals that hold what was measured |",
        "|---|---|--:|--:|--:|",
    ]
    for pair in found["pairs"]:
        worst = max(pair["predictions"], key=lambda one: abs(one["ratio"]["value"] - 1))
        largest = f"{100 * (worst['ratio']['value'] - 1):+.0f} % ({worst['address']})"
        held = f"{pair['intervals_that_hold']} of {pair['of']}"
        lines.append(f"| {pair['held_out']} | {pair['known']} | {100 * pair['median_error']:.1f} % | {largest} | {held} |")
    return "\n".join(lines)


def main() -> int:
    found = compared(Run.read(ROOT / RESULTS))
    data = msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n"
    old = DESIGN.read_text()
    new = _TABLE.sub(lambda _: f"<!-- held-out:begin -->\n{table(found)}\n<!-- held-out:end -->", old)
    if "--check" in sys.argv:
        return int(not FOUND.exists() or FOUND.read_bytes() != data or old != new)
    for pair in found["pairs"]:
        print(f"{pair['held_out']} from {pair['known']}: median error {100 * pair['median_error']:.1f} %")
        for one in pair["predictions"]:
            ratio = one["ratio"]
            ends = f"[{ratio['low']:.3f}, {ratio['high']:.3f}]" if ratio["low"] is not None else "[too few blocks]"
            print(
                f"  {one['address']:14} predicted {one['predicted_s']:7.3f} s, measured {one['measured_s']:7.3f} s, "
                f"ratio {ratio['value']:.3f} {ends}"
            )
    if "--write" in sys.argv:
        FOUND.parent.mkdir(parents=True, exist_ok=True)
        FOUND.write_bytes(data)
        DESIGN.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
