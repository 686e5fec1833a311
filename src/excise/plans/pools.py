"""A plan of claims: who is asked for sandboxes, what is there before, how many are asked for and when."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, Self

import msgspec

from excise.address import Address, parse
from excise.errors import SpecError
from excise.meter.pool_records import Depth, Mode, PoolCell
from excise.meter.records import State

_WITHOUT_A_POOL: tuple[State, ...] = ("warm", "cold", "repo-warm", "deps-warm")


class PoolGrid(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every combination of these that makes sense is a cell: what a pool may hold means nothing where there is none."""

    sources: tuple[str, ...]
    modes: tuple[Mode, ...] = ("none",)
    states: tuple[State, ...] = ("warm",)
    """Of those without a pool: what is kept as files."""
    kept: tuple[bool, ...] = (False,)
    """Of those without a pool: whether what steps lead to is kept as files, of every task."""
    depths: tuple[Depth, ...] = ("",)
    """Of pools: what their idle sandboxes hold before the first claim."""
    idle: int = 0
    claims: tuple[int, ...] = (1,)
    arrivals_per_s: float = 0.0
    zipf: tuple[float, ...] = ()
    """None: one task alone."""
    memory_percent: tuple[int, ...] = ()
    """How many sandboxes a pool may have, as a part of all tasks; or `places`."""
    places: int | None = None
    lead: float = 0.0
    """How many of a pool's places are taken before the first claim, by one idle sandbox for each task asked for before."""
    options: Mapping[str, str] = {}
    """Of every pool, as in its address, without `pool.`."""

    def __post_init__(self) -> None:
        if any(state not in _WITHOUT_A_POOL for state in self.states):
            raise SpecError(f"states are what there is without a pool: {', '.join(_WITHOUT_A_POOL)}; depths are a pool's")
        pooled = any(mode != "none" for mode in self.modes)
        if pooled and (self.places is None) == (not self.memory_percent):
            raise SpecError("say what a pool may hold: places, or memory_percent")
        if any(self.depths) != bool(self.idle):
            raise SpecError("depths and idle belong together: what idle sandboxes hold, and how many there are")
        if not 0 <= self.lead <= 1 or (self.lead and not self.zipf):
            raise SpecError("lead is a part of a pool's places, from 0 to 1, and for grids of several tasks: give zipf")
        if not 0 <= self.arrivals_per_s < math.inf or min(self.claims) < 1:
            raise SpecError("claims are 1 or more, arrivals_per_s is 0 for all at once or a number of claims a second")

    def cells(self, tasks: int) -> Iterator[PoolCell]:
        """`tasks`: how many there are in all."""
        for source, zipf, claims in itertools.product(self.sources, self.zipf or (None,), self.claims):
            plain = PoolCell(
                source=str(parse(source)),
                address=str(parse(source)),
                claims=claims,
                arrivals_per_s=self.arrivals_per_s,
                zipf=zipf,
            )
            if "none" in self.modes:
                for state, kept in itertools.product(self.states, self.kept):
                    yield msgspec.structs.replace(plain, state=state, kept=kept)
            for percent, depth, mode in itertools.product(self.memory_percent or (None,), self.depths, self.modes):
                if mode != "none":
                    yield self._pooled(plain, mode, depth, percent, tasks)

    def _pooled(self, plain: PoolCell, mode: Mode, depth: Depth, percent: int | None, tasks: int) -> PoolCell:
        places = self.places if percent is None else max(1, tasks * percent // 100)
        assert places is not None
        return msgspec.structs.replace(
            plain,
            address=_pool(plain.source, {"match": mode, "count": str(places), **self.options}),
            mode=mode,
            state="pooled",
            depth=depth,
            idle=self.idle,
            lead=round(self.lead * places),
            places=places,
            memory_percent=percent,
        )


def _pool(source: str, options: Mapping[str, str]) -> str:
    below = parse(source)
    own = {f"pool.{name}": value for name, value in options.items()}
    made = Address(name=below.name, guest=below.guest, wrappers=("pool",), options={**own, **below.options})
    return str(made)


class PoolPlanFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run does, before anybody knows what runs here."""

    kind: Literal["pool"] = "pool"
    about: str = ""
    """One sentence: what question it answers."""
    grids: tuple[PoolGrid, ...]
    image: str = "excise/base"
    """The repositories are added to it."""
    repositories: int = 100
    """Two tasks for each of them, on average."""
    seed: int = 0
    blocks: int | None = None
    budget_s: float | None = None
    warmup_blocks: int = 1

    def __post_init__(self) -> None:
        if not self.grids:
            raise SpecError("a plan has at least one [[grids]]")
        if self.repositories < 2 or self.repositories % 2:
            raise SpecError("repositories: half of them have siblings, so give an even number")
        if self.blocks is None and self.budget_s is None:
            raise SpecError("say how long: blocks, or budget_s")

    def narrowed(self, only: Sequence[str]) -> Self:
        """Only these sources of it."""
        if not only:
            return self
        asked = [str(parse(text)) for text in only]
        known = list(dict.fromkeys(str(parse(text)) for grid in self.grids for text in grid.sources))
        unknown = [text for text in asked if text not in known]
        if unknown:
            raise SpecError(f"the plan has no cell of {', '.join(unknown)}; it has: {', '.join(known)}")
        kept = ((grid, tuple(text for text in grid.sources if str(parse(text)) in asked)) for grid in self.grids)
        grids = tuple(msgspec.structs.replace(grid, sources=own) for grid, own in kept if own)
        return msgspec.structs.replace(self, grids=grids)

    def cells(self, tasks: int) -> tuple[PoolCell, ...]:
        """Each once."""
        return tuple(dict.fromkeys(cell for grid in self.grids for cell in grid.cells(tasks)))


def overridden_pools(
    plan: PoolPlanFile, *, image: str | None = None, seed: int | None = None, blocks: int | None, budget_s: float | None
) -> PoolPlanFile:
    """`plan` with what a caller said instead. A number of blocks alone ends the plan's budget, and the other way round."""
    if blocks is not None or budget_s is not None:
        plan = msgspec.structs.replace(plan, blocks=blocks, budget_s=budget_s)
    given = {"image": image, "seed": seed}
    return msgspec.structs.replace(plan, **{name: value for name, value in given.items() if value is not None})
