"""Write the README's table anew from raw results that are committed.

python bench/readme_table.py                  from the results that the README names
python bench/readme_table.py DIRECTORY        from these, which the README then names
python bench/readme_table.py --check          exit 1 if the README is not what its results say
"""

import re
import sys
from pathlib import Path

from excise.report.facts import Facts
from excise.report.numbers import NOTHING, interval, percent, short
from excise.report.parts import Table
from excise.stats.jackknife import FEWEST_BLOCKS
from excise.stats.projection import LONG, MILLION, project
from excise.stats.rows import Row
from excise.stats.run import Run

ROOT = Path(__file__).parents[1]
TIERS = ("t0", "t1", "t2")
_BLOCK = re.compile(r"<!-- measure:begin (?P<results>\S+) -->\n.*?<!-- measure:end -->", re.DOTALL)


def main() -> int:
    readme = ROOT / "README.md"
    old = readme.read_text()
    found = _BLOCK.search(old)
    if found is None:
        print("README.md has no place for the table: put <!-- measure:begin DIRECTORY --> and <!-- measure:end --> into it")
        return 1
    asked = [word for word in sys.argv[1:] if not word.startswith("-")]
    results = asked[0].rstrip("/") if asked else found["results"]
    new = old.replace(found[0], f"<!-- measure:begin {results} -->\n{told(results)}<!-- measure:end -->")
    if "--check" in sys.argv:
        return int(old != new)
    readme.write_text(new)
    return 0


def told(results: str) -> str:
    """The table, what was measured, and how to read it."""
    facts = Facts(Run.read(ROOT / results))
    header = facts.run.header
    origin, plan = header.provenance, header.plan
    page = Path(results) / "report" / "index.html"
    links = f"[raw data]({results})" + (f" and [page]({page})" if (ROOT / page).exists() else "")
    ran = f"`excise measure --plan {plan.name}`" if plan.name else "`excise measure`"
    blocks = "1 block" if facts.run.blocks == 1 else f"{facts.run.blocks} blocks"
    what = (
        f"What {ran} found in {blocks} on {origin.cores} cores of {origin.cpu}, {origin.kernel}, image "
        f"`{plan.image}` ({links}):"
    )
    return f"{what}\n\n{table(facts).markdown()}\n{_reading(facts)}\n"


def table(facts: Facts) -> Table:
    """A row a substrate, the cheapest first: the tax of each tier, then of the long rollout."""
    long = {row.address: row for row in facts.long if row.costs is not None}
    tiers = {tier: _plain(facts, tier) for tier in TIERS if _plain(facts, tier)}
    measured = any(row.actions == LONG for row in long.values())
    every = [*tiers.values(), long]
    addresses = sorted({address for rows in every for address in rows}, key=lambda one: (_hours(long.get(one)), one))
    body: list[tuple[str, ...]] = []
    for address in addresses:
        row, shown = long.get(address), [_tax(rows.get(address)) for rows in tiers.values()]
        if measured:
            shown.append(_tax(row))
        counts = sorted({rows[address].n for rows in every if address in rows})
        n = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        reference = " (reference)" if address == facts.run.reference else ""
        body.append((f"{address}{reference}", *shown, _dispatch(row), _worker_hours(row), n))
    heads = ["substrate", *(f"{tier.upper()}: tax (ms), rate" for tier in tiers)]
    heads += [f"{LONG} actions: tax (ms), rate"] if measured else []
    heads += ["dispatch (ms/action)", f"worker-hours, {MILLION:,} x {LONG}", "n"]
    return Table(name="readme", title="", heads=tuple(heads), rows=tuple(body))


def _plain(facts: Facts, workload: str) -> dict[str, Row]:
    rows = (row for row in facts.rows if row.cell.workload == workload and not row.cell.factors() and row.n)
    return {row.address: row for row in rows}


def _hours(row: Row | None) -> float:
    return float("inf") if row is None or row.costs is None else project(row.costs).hours.value


def _tax(row: Row | None) -> str:
    if row is None or row.tax_s is None or row.tax_rate is None:
        return NOTHING
    ends = interval(row.tax_s, 1e3)
    return short(row.tax_s.value * 1e3) + (f" [{ends}]" if ends else "") + f", {percent(row.tax_rate)[0]} %"


def _dispatch(row: Row | None) -> str:
    if row is None or row.dispatch_s is None:
        return NOTHING
    ends = interval(row.dispatch_s, 1e3)
    return ("~" if row.estimated else "") + short(row.dispatch_s.value * 1e3) + (f" [{ends}]" if ends else "")


def _worker_hours(row: Row | None) -> str:
    if row is None or row.costs is None:
        return NOTHING
    found = project(row.costs).hours
    ends = interval(found)
    return short(found.value) + (f" [{ends}]" if ends else "")


def _reading(facts: Facts) -> str:
    rows = facts.long
    kinds = {"t0": "minimal commands", "t1": "inspection and search of a repository", "t2": "clone, patch and test of one"}
    lengths = {tier: next(iter(_plain(facts, tier).values())).actions for tier in TIERS if _plain(facts, tier)}
    work = "; ".join(f"{tier.upper()}: {lengths[tier]} actions, {kinds[tier]}" for tier in lengths)
    blocks = facts.run.blocks
    parts = [
        f"{work}. Tax: what a rollout takes beyond the work of its actions, timed on {facts.run.reference} in the same block; "
        "rate: its share of the rollout; dispatch: to an action and back, beyond its time inside.",
        f"Worker-hours: from rollouts of {LONG} actions, as if none failed."
        if all(row.actions == LONG for row in rows)
        else f"Worker-hours: composed from start, mean action and cleanup of {facts.workload}, as if none failed.",
        "In brackets: 95 % intervals." if blocks >= FEWEST_BLOCKS else f"Below {FEWEST_BLOCKS} blocks there are no intervals.",
    ]
    if any(row.estimated for row in rows):
        parts.append("~: no clock runs inside; by null actions beside each action.")
    return " ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
