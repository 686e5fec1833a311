"""What the page's calculator computes with: each row's blocks, so that it gives the same numbers, with the same intervals, as
`excise project`."""

from typing import Any

from excise.report.facts import Facts
from excise.stats.jackknife import FEWEST_BLOCKS, NEAR_ZERO, student
from excise.stats.projection import LONG, MILLION
from excise.stats.rows import Row

_COLUMNS = ("rollouts", "actions", "fixed", "acting")
DEFAULT_DEADLINE_H = 24


def calculator(facts: Facts) -> dict[str, Any] | None:
    """None where no row has a successful trial."""
    rows = [row for row in facts.rows if row.costs is not None]
    if not rows:
        return None
    main = sorted(facts.isolated, key=lambda row: -(row.total_s.value if row.total_s else 0.0))
    dear, cheap = (main[0], main[-1]) if main else (rows[0], rows[-1])
    return {
        "rows": [{"name": facts.title(row), "measured": row.actions, **_columns(row)} for row in rows],
        "student": {str(n): student(n - 1) for n in _counts(rows)},
        "fewest": FEWEST_BLOCKS,
        "near": NEAR_ZERO,
        "usual": {
            "actions": LONG,
            "rollouts": MILLION,
            "think": 0,
            "fail": 0,
            "deadline": DEFAULT_DEADLINE_H,
            "a": facts.title(dear),
            "b": facts.title(cheap),
        },
    }


def _counts(rows: list[Row]) -> range:
    """Pairs of rows may share fewer blocks than either has."""
    most = max(row.blocks.n for row in rows if row.blocks is not None)
    return range(FEWEST_BLOCKS, most + 1)


def _columns(row: Row) -> dict[str, Any]:
    """By block. What is the same in every block is given once."""
    assert row.blocks is not None
    found: dict[str, Any] = {"ids": list(row.blocks.ids)}
    for name in _COLUMNS:
        whole = row.blocks.sums[name]
        values = [float(f"{whole - without[name]:.10g}") for without in row.blocks.without_each]
        found[name] = values[0] if len(set(values)) == 1 else values
    return found
