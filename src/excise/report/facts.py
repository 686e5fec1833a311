"""A run as the page tells it: which rows speak, what each is called, and the colour it keeps through all figures."""

from dataclasses import dataclass
from functools import cached_property

import msgspec

from excise.address import parse
from excise.errors import SpecError
from excise.meter.records import Cell
from excise.report.figures.theme import SERIES, SHAPES
from excise.stats.jackknife import FEWEST_BLOCKS
from excise.stats.projection import LONG
from excise.stats.rows import Row
from excise.stats.run import Run
from excise.stats.whatif import NOT_ISOLATED

_TIERS = ("t2", "t2-net", "t1", "t0")
"""Of what comes with the package, what is most like an agent's work first; somebody's own is before all of them."""


class Tone(msgspec.Struct, frozen=True):
    """How a substrate is drawn."""

    colour: str
    shape: str


@dataclass(frozen=True)
class Facts:
    """`run`, and what is chosen from it."""

    run: Run

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        return self.run.rows

    @cached_property
    def workloads(self) -> tuple[str, ...]:
        """In the plan's order."""
        return tuple(dict.fromkeys(row.cell.workload for row in self.rows))

    @cached_property
    def workload(self) -> str:
        """The one that the page's first half is about."""
        measured = [name for name in self.workloads if any(row.n for row in self.of(name))]
        return min(measured or self.workloads, key=self._weight, default="")

    def _weight(self, workload: str) -> tuple[int, bool, int]:
        name = workload.partition("?")[0]
        longest = max((row.actions for row in self.of(workload)), default=0)
        return (_TIERS.index(name) if name in _TIERS else -1, "?" in workload, -longest)

    def of(self, workload: str) -> list[Row]:
        """Its rows with the usual factors; all of them where nothing but the reference has the usual ones."""
        rows = [row for row in self.rows if row.cell.workload == workload]
        usual = [row for row in rows if not row.cell.factors()]
        return usual if any(row.address != self.run.reference for row in usual) else rows

    @cached_property
    def main(self) -> list[Row]:
        """What the page's first half shows: one workload, usual factors, at least one success."""
        return [row for row in self.of(self.workload) if row.n]

    @cached_property
    def long(self) -> list[Row]:
        """The same workload at the length that is projected, where that was measured; else `main`, to be composed from."""
        same = [name for name in self.workloads if family(name) == family(self.workload)]
        found = [row for name in same for row in self.of(name) if row.n and row.actions == LONG]
        return found or self.main

    @cached_property
    def isolated(self) -> list[Row]:
        """Of these, those that a policy's commands could be trusted to; all of them where none is.

        They differ in their substrate alone: one under load and one without are not compared.
        """
        known = [row for row in self.main if row.total_s is not None]
        alike: dict[Cell, list[Row]] = {}
        for row in [row for row in known if isolates(row.address)] or known:
            alike.setdefault(msgspec.structs.replace(row.cell, address=""), []).append(row)
        return max(alike.values(), key=len) if alike else []

    @cached_property
    def tones(self) -> dict[str, Tone]:
        """By address, in the order of the plan, the same in every figure."""
        addresses = dict.fromkeys(row.address for row in self.rows)
        return {
            address: Tone(SERIES[index % len(SERIES)], SHAPES[index % len(SHAPES)]) for index, address in enumerate(addresses)
        }

    def with_intervals(self, told: str) -> str:
        """What a caption says of the intervals that it shows, or that there are none."""
        if self.run.blocks >= FEWEST_BLOCKS:
            return told
        blocks = "one block" if self.run.blocks == 1 else f"{self.run.blocks} blocks"
        return f"{blocks}: no intervals, they need {FEWEST_BLOCKS}"

    def title(self, row: Row) -> str:
        """What a row is called among all of the run's, as `excise project` calls it."""
        return f"{row.name} on {row.cell.workload}" if len(self.workloads) > 1 else row.name


def family(workload: str) -> str:
    """The workload without its length: `t2?preloaded=true` of `t2?actions=50&preloaded=true`."""
    name, _, options = workload.partition("?")
    kept = [option for option in options.split("&") if option and not option.startswith("actions=")]
    return f"{name}?{'&'.join(kept)}" if kept else name


def isolates(address: str) -> bool:
    try:
        return parse(address).name not in NOT_ISOLATED
    except SpecError:
        return True  # An address of a newer grammar: nothing says that it does not.
