"""A plan of rollouts: grids of factors, whose every combination is a cell."""

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Self

import msgspec

from excise.address import parse
from excise.errors import SpecError
from excise.meter.records import AS_RECORDED, Cell, Reset, ShellMode, State

_UNMADE: dict[State, str] = {
    "deps-warm": "it is a state of claims, which the plan warm has",
    "pooled": "it is a state of claims, which the plans warm, burst and mixed have",
}


class Grid(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every combination of these is a cell."""

    addresses: tuple[str, ...] = ()
    """None: all that run here."""
    workloads: tuple[str, ...] = ("t0",)
    lengths: tuple[int, ...] = ()
    """Actions a rollout, for workloads that have the option; none: each as long as it is."""
    states: tuple[State, ...] = ("warm",)
    shells: tuple[ShellMode, ...] = ("exec",)
    resets: tuple[Reset, ...] = ("recreate",)
    concurrencies: tuple[int, ...] = (1,)
    """Rollouts that begin at once; with arrivals, how many of them there are."""
    arrivals_per_s: tuple[float, ...] = (0.0,)
    """They begin at random times, so many a second on average, and wait for nobody; 0: all at once."""
    think_s: tuple[float | Literal["recorded"], ...] = (0.0,)

    def __post_init__(self) -> None:
        for state in self.states:
            if state in _UNMADE:
                raise SpecError(
                    f"state {state!r} cannot be measured of rollouts: {_UNMADE[state]}; use warm, cold, registry or repo-warm"
                )
        if any(number < 1 for number in self.concurrencies):
            raise SpecError("a concurrency is the number of rollouts at once: give 1 or more")
        if not all(0 <= rate < math.inf for rate in self.arrivals_per_s):
            raise SpecError("arrivals_per_s is how many rollouts begin in a second: give numbers above 0, or 0 for all at once")
        if any(self.arrivals_per_s) and 1 in self.concurrencies:
            raise SpecError("one rollout makes no load: say with concurrencies how many arrive, 2 or more")
        if any(number < 1 for number in self.lengths):
            raise SpecError("a length is the number of actions in a rollout: give 1 or more")
        if any(one != "recorded" and not one >= 0 for one in self.think_s):
            raise SpecError('a think time is a number of seconds from 0, or "recorded"')

    def texts(self) -> list[str]:
        """The workloads as they are asked for, their lengths included."""
        if not self.lengths:
            return list(self.workloads)
        return [_with_length(text, length) for text in self.workloads for length in self.lengths]

    def cells(self, addresses: Iterable[str], names: dict[str, str]) -> list[Cell]:
        """The cells on `addresses`, if the grid names none; `names` are the workloads' own, by how they are asked for."""
        factors = itertools.product(
            self.texts(),
            self.states,
            self.shells,
            self.resets,
            self.concurrencies,
            self.arrivals_per_s,
            self.think_s,
            self.addresses or addresses,
        )
        return [
            _cell(
                address=str(parse(address)),
                workload=names[text],
                state=state,
                shell=shell,
                reset=reset,
                concurrency=concurrency,
                arrivals_per_s=rate,
                think_s=AS_RECORDED if think_s == "recorded" else think_s,
            )
            for text, state, shell, reset, concurrency, rate, think_s, address in factors
            if text in names
        ]


def _cell(**factors: Any) -> Cell:
    """Without what is the default anyway: a default that was read from a file would be written to every line of results."""
    usual = {field.name: field.default for field in msgspec.structs.fields(Cell)}
    return Cell(**{name: value for name, value in factors.items() if value != usual[name]})


class RolloutPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run does, before anybody knows what runs here."""

    kind: Literal["rollout"] = "rollout"
    about: str = ""
    """One sentence: what question it answers."""
    grids: tuple[Grid, ...]
    image: str | None = None
    """None: the workload's own, if it names one, and else `host`."""
    reference: str | None = None
    """None: chroot+guest, or the next that runs here of chroot and, for the host's own image, local."""
    seed: int = 0
    blocks: int | None = None
    budget_s: float | None = None
    warmup_blocks: int = 1
    rerun_noisy: bool = False

    def __post_init__(self) -> None:
        if not self.grids:
            raise SpecError("a plan has at least one [[grids]]")

    def texts(self) -> list[str]:
        """Every workload, as it is asked for."""
        return list(dict.fromkeys(text for grid in self.grids for text in grid.texts()))

    def addresses(self) -> list[str]:
        """Every address that it names itself."""
        return list(dict.fromkeys(str(parse(text)) for grid in self.grids for text in grid.addresses))

    @property
    def open(self) -> bool:
        """Whether some grid is for whatever runs here."""
        return any(not grid.addresses for grid in self.grids)

    def narrowed(self, only: Sequence[str]) -> Self:
        """Only these addresses of it; those that it does not name go to the grids that name none."""
        if not only:
            return self
        asked = [str(parse(text)) for text in only]
        unknown = [text for text in asked if text not in self.addresses()]
        if unknown and not self.open:
            known = ", ".join(self.addresses())
            raise SpecError(f"the plan has no cell of {', '.join(unknown)}; it has: {known}")
        grids: list[Grid] = []
        for grid in self.grids:
            own = tuple(text for text in grid.addresses if str(parse(text)) in asked) if grid.addresses else tuple(asked)
            if own:
                grids.append(msgspec.structs.replace(grid, addresses=own))
        return msgspec.structs.replace(self, grids=tuple(grids))

    def cells(self, here: Iterable[str], names: dict[str, str]) -> tuple[Cell, ...]:
        """Each cell once. `here`: the addresses for grids that name none."""
        found = (cell for grid in self.grids for cell in grid.cells(tuple(here), names))
        return tuple(dict.fromkeys(found))


def _with_length(text: str, length: int) -> str:
    return f"{text}{'&' if '?' in text else '?'}actions={length}"


PLAIN = RolloutPlan(grids=(Grid(),))
"""T0 on what runs here."""


def overridden(
    plan: RolloutPlan,
    *,
    workload: str | None = None,
    image: str | None = None,
    reference: str | None = None,
    seed: int | None = None,
    blocks: int | None = None,
    budget_s: float | None = None,
) -> RolloutPlan:
    """`plan` with what a caller said instead. A number of blocks alone ends the plan's budget, and the other way round."""
    if blocks is not None or budget_s is not None:
        plan = msgspec.structs.replace(plan, blocks=blocks, budget_s=budget_s)
    if workload is not None:
        grids = dict.fromkeys(msgspec.structs.replace(grid, workloads=(workload,), lengths=()) for grid in plan.grids)
        plan = msgspec.structs.replace(plan, grids=tuple(grids))
    given = {"image": image, "reference": reference, "seed": seed}
    return msgspec.structs.replace(plan, **{name: value for name, value in given.items() if value is not None})
