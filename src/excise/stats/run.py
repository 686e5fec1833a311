"""A whole run as its readers see it."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from excise.errors import SpecError
from excise.meter.records import Header, Skipped
from excise.meter.results import Results
from excise.stats.estimate import Estimate
from excise.stats.jackknife import PLAIN, POSITIVE, Blocks, Scale, Sums
from excise.stats.rows import Row, row


class Run:
    """What `excise.measure` returns: `run["docker"].tax_rate`. Only whole, measured blocks are in it."""

    def __init__(self, results: Results) -> None:
        self._results = results
        whole = set(results.whole_blocks())
        self._measured = [trial for trial in results.trials if trial.block in whole and not trial.warmup]

    @property
    def header(self) -> Header:
        return self._results.header

    @property
    def path(self) -> Path:
        """The results directory."""
        return self._results.path

    @property
    def reference(self) -> str | None:
        return self.header.plan.reference

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """Addresses that were asked for and cannot run here, and why."""
        return self.header.skipped

    @property
    def blocks(self) -> int:
        """How many whole blocks were measured, warm-ups not counted."""
        return len({trial.block for trial in self._measured})

    @cached_property
    def background_cores(self) -> float | None:
        """How many cores were busy in the quiet windows before trials: somebody else's doing, and in every `cpu_s`."""
        watched_s = sum(trial.quiet.window_ns for trial in self._measured) / 1e9
        return sum(trial.quiet.busy_s for trial in self._measured) / watched_s if watched_s else None

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """In the plan's order."""
        by_cell = {cell: [t for t in self._measured if t.cell == cell] for cell in self.header.plan.cells}
        found: list[Row] = []
        for cell, trials in by_cell.items():
            beside = [t for c, ts in by_cell.items() if c.address == self.reference and c.workload == cell.workload for t in ts]
            references = {t.block: t for t in beside if t.failure is None}
            is_reference = cell.address == self.reference
            found.append(row(cell, trials, references, reference=is_reference))
        return tuple(found)

    def __getitem__(self, address: str) -> Row:
        for found in self.rows:
            if found.address == address:
                return found
        for skipped in self.skipped:
            if skipped.address == address:
                raise KeyError(f"{address} was skipped: {skipped.reason}")
        raise KeyError(f"{address} is not in this run; there are: {', '.join(r.address for r in self.rows)}")

    def ratio(self, address: str, to: str) -> Estimate:
        """Mean total of one row over another's, paired within blocks."""
        return self._compare(address, to, lambda sums: sums["a"] / sums["b"], POSITIVE)

    def difference_s(self, address: str, to: str) -> Estimate:
        """Mean total of one row less another's, paired within blocks."""
        return self._compare(address, to, lambda sums: (sums["a"] - sums["b"]) / sums["blocks"], PLAIN)

    def _compare(self, address: str, to: str, statistic: Callable[[Sums], float], scale: Scale) -> Estimate:
        a, b = self[address].totals_s, self[to].totals_s
        shared = sorted(a.keys() & b.keys())
        if not shared:
            raise SpecError(f"{address} and {to} have no block in which both succeeded: there is nothing to compare")
        columns = {"a": [a[k] for k in shared], "b": [b[k] for k in shared], "blocks": [1.0] * len(shared)}
        return Blocks(columns).estimate(statistic, scale)
