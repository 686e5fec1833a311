"""Write the README's table anew from the raw results that are committed.

python bench/readme_table.py [--check]
"""

import gzip
import re
import sys
import tempfile
from pathlib import Path

from excise.meter.results import load
from excise.report.markdown import markdown
from excise.stats.run import Run

ROOT = Path(__file__).parents[1]
RESULTS = "docs/results/seam/t0"
_BLOCK = re.compile(r"(<!-- measure:begin -->\n).*?(<!-- measure:end -->)", re.DOTALL)


def table() -> str:
    """The committed results as Markdown, with where they lie in place of where they were loaded from."""
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place)
        (copy / "run.json").write_bytes((ROOT / RESULTS / "run.json").read_bytes())
        (copy / "trials.jsonl").write_bytes(gzip.decompress((ROOT / RESULTS / "trials.jsonl.gz").read_bytes()))
        return markdown(Run(load(copy))).replace(f"Results: {place}", f"Raw results: [{RESULTS}]({RESULTS})")


def renewed(readme: str) -> str:
    return _BLOCK.sub(lambda found: f"{found[1]}{table()}{found[2]}", readme)


def main() -> int:
    path = ROOT / "README.md"
    old = path.read_text()
    new = renewed(old)
    if "--check" in sys.argv:
        return int(old != new)
    path.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
