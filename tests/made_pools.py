"""Results of pools that were made up: known times for each mode and start state, a little seeded noise."""

import math
import random
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from excise.meter.pool_records import Claim, Mode, PoolCell, PoolHeader, PoolPlan, PoolTrial
from excise.meter.records import Quiet
from made_results import ORIGIN

START_MS = {"cold": 2600.0, "warm": 1400.0, "repo-warm": 900.0, "deps-warm": 20.0}
DEPTH_MS = {"base": 1380.0, "image": 1200.0, "repo": 800.0, "sibling": 60.0, "deps": 6.0, "": 400.0}
SOURCES = {"namespace": 1.0, "docker": 1.6, "docker+guest": 1.3}
CPU_S = {"none": 1.1, "exact": 0.95, "closest": 0.5}


def made_pool_header(cells: Iterable[PoolCell], name: str = "mixed") -> PoolHeader:
    plan = PoolPlan(cells=tuple(cells), image="excise/base", workload="mixed", seed=1, blocks=8, name=name)
    return PoolHeader(id="p", started="2026-01-01T00:00:00Z", plan=plan, provenance=ORIGIN)


def made_pool_trials(cells: Sequence[PoolCell], blocks: int = 8) -> list[PoolTrial]:
    """Block 0 warms up. Every cell has the same noise in a block, as arrivals have."""
    return [made_pool_trial(cell, block) for block in range(blocks + 1) for cell in cells]


def made_pool_trial(cell: PoolCell, block: int, **more: Any) -> PoolTrial:
    shared = random.Random(f"{block}").lognormvariate(0, 0.08)  # noqa: S311 - noise
    chance = random.Random(f"{block}:{cell}")  # noqa: S311
    claims = tuple(_claim(cell, number, shared, chance) for number in range(cell.claims))
    known: dict[str, Any] = {
        "claims": claims,
        "floor_ns": (900_000, 1_000_000, 1_100_000),
        "cpu_s": CPU_S[cell.mode] * shared * cell.claims,
        "lead_cpu_s": 0.4 * (cell.idle + cell.lead),
        "wall_ns": 10**9,
        "warmup": block == 0,
        "quiet": Quiet(window_ns=20_000_000),
        "position": 0,
    }
    return PoolTrial(run="p", block=block, cell=cell, **(known | more))


def _claim(cell: PoolCell, number: int, shared: float, chance: random.Random) -> Claim:
    hit = _hit(cell, number, chance)
    base_ms = START_MS[cell.state] if cell.mode == "none" else DEPTH_MS[cell.depth if cell.zipf is None else _DEPTH_OF[hit]]
    if cell.kept:
        base_ms = START_MS["deps-warm"]
    crowd = 1.0 if cell.arrivals_per_s else 1 + number / 8
    took_ms = base_ms * SOURCES[cell.source] * shared * chance.lognormvariate(0, 0.1) * crowd
    at_ns = round(1e9 * number / cell.arrivals_per_s) if cell.arrivals_per_s else 0
    return Claim(number, at_ns, 100_000, round(took_ms * 1e6), round(took_ms * 1e6) + 10**7, hit)


_DEPTH_OF = {"deps": "deps", "sibling": "sibling", "repo": "repo", "miss": "base", "": "base"}


def _hit(cell: PoolCell, number: int, chance: random.Random) -> str:
    if cell.mode == "none":
        return ""
    if cell.zipf is None:
        return {"": "deps"}.get(cell.depth, cell.depth)
    room = (cell.memory_percent or 0) / 100 * (1 + cell.zipf) * (1 - math.exp(-(number + 5) / 10))
    if chance.random() < room:
        return "deps"
    return "sibling" if cell.mode == "closest" and chance.random() < 0.5 else "miss"


def mixed_cells(source: str = "namespace") -> list[PoolCell]:
    cells: list[PoolCell] = []
    for zipf in (0.0, 0.8, 1.2):
        common = PoolCell(source=source, address=source, claims=40, arrivals_per_s=5.0, zipf=zipf)
        cells += [_with(common, kept=kept) for kept in (False, True)]
        for percent in (10, 25, 50):
            modes: tuple[Mode, ...] = ("exact", "closest")
            for mode in modes:
                address = f"pool:{source}?pool.match={mode}&pool.count={2 * percent}"
                cells.append(
                    _with(
                        common,
                        address=address,
                        mode=mode,
                        state="pooled",
                        memory_percent=percent,
                        places=2 * percent,
                        lead=3 * percent,
                    )
                )
    return cells


def warm_cells() -> list[PoolCell]:
    cells: list[PoolCell] = []
    for source in SOURCES:
        cells += [PoolCell(source=source, address=source, state=state) for state in ("cold", "warm", "repo-warm", "deps-warm")]  # pyright: ignore[reportArgumentType]
        for depth in ("base", "image", "repo", "sibling", "deps"):
            common = PoolCell(source=source, address=f"pool:{source}", mode="closest", state="pooled", idle=1, places=4)
            cells.append(_with(common, depth=depth))
    return cells


def burst_cells() -> list[PoolCell]:
    cells: list[PoolCell] = []
    for source, sizes in (("namespace", (1, 4, 16, 64, 256)), ("docker+guest", (1, 4, 16))):
        for claims in sizes:
            plain = PoolCell(source=source, address=source, claims=claims)
            pooled = _with(plain, address=f"pool:{source}", mode="closest", state="pooled", depth="deps", idle=64, places=64)
            cells += [plain, pooled]
    return cells


def _with(cell: PoolCell, **more: Any) -> PoolCell:
    return msgspec.structs.replace(cell, **more)
