"""A whole run as its readers see it."""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from excise.errors import SpecError
from excise.meter.records import Cell, Header, Skipped
from excise.meter.results import Results, scan
from excise.stats.condensed import Condensed, condense
from excise.stats.estimate import Estimate
from excise.stats.jackknife import POSITIVE, SIGNED, Blocks, Scale, Sums
from excise.stats.rows import Row
from excise.stats.tabulate import tabulate


class Run:
    """What `excise.measure` returns: `run["docker"].tax_rate`. Only whole, measured blocks are in it."""

    def __init__(self, results: Results) -> None:
        self._results = results  # with every span; `read` keeps none
        self._fill(results.header, results.path, map(condense, results.trials))

    @classmethod
    def read(cls, path: Path) -> Self:
        """From a results directory, a trial at a time: the spans of all of them would not fit."""
        header, trials = scan(path)
        run = cls.__new__(cls)
        run._fill(header, path, map(condense, trials))
        return run

    def _fill(self, header: Header, path: Path, trials: Iterable[Condensed]) -> None:
        planned = frozenset(header.plan.cells)
        self.header = header
        self.path = path
        """The results directory."""
        every = list(trials)
        foreign = next((trial.cell for trial in every if trial.cell not in planned), None)
        if foreign is not None:
            raise SpecError(
                f"{path} has a trial of {foreign.address} on {foreign.workload} that its plan has not: it is damaged"
            )
        whole = _whole_blocks(header.plan.cells, every)
        self._measured = [trial for trial in every if trial.block in whole and not trial.warmup]
        self.control = [trial for trial in every if trial.control and not trial.warmup]
        """Trials of control blocks, run with every daemon stopped; `stats.control` sets them beside the others."""

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

    @property
    def noisy(self) -> int:
        """Measured trials whose quiet window was not quiet. They are in `rows`."""
        return sum(trial.noisy and not trial.rerun for trial in self._measured)

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Every trial once, in the plan's order: the main table. What was run again is not in it: blocks stay balanced."""
        return self._rows([trial for trial in self._measured if not trial.rerun])

    @cached_property
    def quiet_rows(self) -> tuple[Row, ...]:
        """The same without noisy trials and with those that were run again in their place: it stands beside, never instead."""
        return self._rows([trial for trial in self._measured if not trial.noisy])

    def _rows(self, trials: Sequence[Condensed]) -> tuple[Row, ...]:
        by_cell: dict[Cell, list[Condensed]] = {cell: [] for cell in self.header.plan.cells}
        for trial in trials:
            by_cell[trial.cell].append(trial)
        found: list[Row] = []
        for cell, own in by_cell.items():
            beside = self._reference_of(cell)
            references = {t.block: t for t in (by_cell[beside] if beside else ()) if t.failure is None and not t.lane}
            found.append(tabulate(cell, own, references, reference=cell == beside))
        return tuple(found)

    def _reference_of(self, cell: Cell) -> Cell | None:
        """The reference's cell that did the same actions: in the same shell mode if there is one, and alone."""
        there = [c for c in self.header.plan.cells if c.address == self.reference and c.workload == cell.workload]

        def far(other: Cell) -> tuple[bool, int, int]:
            unlike = sum(getattr(other, name) != getattr(cell, name) for name in ("state", "reset", "think_s"))
            return other.shell != cell.shell, other.concurrency, unlike

        return min(there, key=far, default=None)

    def starts_s(self, cell: Cell) -> list[list[float]]:
        """How long each successful trial of `cell` took to its start state, set-up included, by block."""
        found: dict[int, list[float]] = {}
        for trial in self._measured:
            if trial.cell == cell and trial.failure is None and not trial.rerun:
                found.setdefault(trial.block, []).append((trial.start_ns + trial.setup_ns) / 1e9)
        return list(found.values())

    def reference_row(self, row: Row) -> Row | None:
        """The row that `row`'s work was measured on."""
        beside = self._reference_of(row.cell)
        return next((found for found in self.rows if found.cell == beside), None)

    def row(self, **factors: Any) -> Row:
        """The one row whose cell has these factors: `run.row(address="docker", shell="session")`."""
        unknown = sorted(factors.keys() - set(Cell.__struct_fields__))
        if unknown:
            raise KeyError(f"a cell has no factor {unknown[0]!r}; it has: {', '.join(Cell.__struct_fields__)}")
        found = [row for row in self.rows if all(getattr(row.cell, name) == value for name, value in factors.items())]
        if len(found) == 1:
            return found[0]
        asked = ", ".join(f"{name}={value!r}" for name, value in factors.items())
        if not found:
            raise KeyError(f"no row has {asked}; there are: {_listed(self.rows)}")
        raise KeyError(f"{len(found)} rows have {asked}; say which with run.row(address=..., ...): {_listed(found)}")

    def __getitem__(self, address: str) -> Row:
        """The row of `address`, where there is one row of it; else use `row`."""
        if not any(found.address == address for found in self.rows):
            for skipped in self.skipped:
                if skipped.address == address:
                    raise KeyError(f"{address} was skipped: {skipped.reason}")
            known = dict.fromkeys(found.address for found in self.rows)
            raise KeyError(f"{address} is not in this run; there are: {', '.join(known)}")
        return self.row(address=address)

    def ratio(self, address: str, to: str) -> Estimate:
        """Mean total of one row over another's, paired within blocks."""
        return ratio(self[address], self[to])

    def difference_s(self, address: str, to: str) -> Estimate:
        """Mean total of one row less another's, paired within blocks."""
        return difference_s(self[address], self[to])


def ratio(above: Row, below: Row) -> Estimate:
    """Mean total of one row over another's, paired within blocks."""
    return _compare(above, below, lambda sums: sums["a"] / sums["b"], POSITIVE)


def difference_s(above: Row, below: Row) -> Estimate:
    """Mean total of one row less another's, paired within blocks."""
    return _compare(above, below, lambda sums: (sums["a"] - sums["b"]) / sums["blocks"], SIGNED)


def _compare(above: Row, below: Row, statistic: Callable[[Sums], float], scale: Scale) -> Estimate:
    a, b = above.totals_s, below.totals_s
    shared = sorted(a.keys() & b.keys())
    if not shared:
        raise SpecError(f"{above.name} and {below.name} have no block in which both succeeded: there is nothing to compare")
    columns = {"a": [a[k] for k in shared], "b": [b[k] for k in shared], "blocks": [1.0] * len(shared)}
    return Blocks(columns).estimate(statistic, scale)


def _listed(rows: Iterable[Row]) -> str:
    return "; ".join(f"{row.name} on {row.cell.workload}" for row in rows)


def _whole_blocks(cells: Sequence[Cell], trials: Iterable[Condensed]) -> frozenset[int]:
    """Blocks in which every lane of every cell had its trial, failed or not."""
    wanted = {(cell, lane) for cell in cells for lane in range(cell.concurrency)}
    seen: dict[int, set[tuple[Cell, int]]] = {}
    for trial in trials:
        if not trial.rerun and not trial.control:
            seen.setdefault(trial.block, set()).add((trial.cell, trial.lane))
    return frozenset(block for block, found in seen.items() if wanted <= found)
