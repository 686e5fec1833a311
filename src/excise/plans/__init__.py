"""Plans that come with the package, as TOML: what is measured, on what, how often."""

import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from excise.errors import SpecError
from excise.meter.latency_records import LatencyPlan
from excise.meter.records import AS_RECORDED
from excise.meter.results import scan
from excise.plans.pools import PoolPlanFile, overridden_pools
from excise.plans.rollout import PLAIN, Grid, RolloutPlan, overridden

__all__ = [
    "PLAIN",
    "Grid",
    "LatencyPlan",
    "PoolPlanFile",
    "RolloutPlan",
    "like",
    "load",
    "load_latencies",
    "load_pools",
    "load_rollouts",
    "names",
    "overridden",
    "overridden_pools",
]

AnyPlan = RolloutPlan | LatencyPlan | PoolPlanFile
_KINDS: dict[str, type[AnyPlan]] = {"rollout": RolloutPlan, "latency": LatencyPlan, "pool": PoolPlanFile}


def load(name: str) -> AnyPlan:
    """The plan called `name`, or the one in the TOML file at that path; its `kind` says which of the three it is."""
    try:
        data = tomllib.loads(_text(name))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"plan {name!r} cannot be read: {error}") from None
    kind = data.get("kind")
    if kind not in _KINDS:
        raise SpecError(f'plan {name!r} does not say what it measures: begin it with kind = "rollout", "latency" or "pool"')
    try:
        return _converted(data, _KINDS[kind])
    except (msgspec.ValidationError, SpecError) as error:
        raise SpecError(f"plan {name!r} cannot be used: {error}") from None


def load_rollouts(name: str) -> RolloutPlan:
    """The same, where only rollouts will do."""
    plan = load(name)
    if not isinstance(plan, RolloutPlan):
        what = "claims" if isinstance(plan, PoolPlanFile) else "single operations"
        raise SpecError(f"plan {name!r} measures {what}: `excise measure --plan {name}` runs it")
    return plan


def load_latencies(name: str) -> LatencyPlan:
    """The same, where only single operations will do."""
    plan = load(name)
    if not isinstance(plan, LatencyPlan):
        what = "claims" if isinstance(plan, PoolPlanFile) else "rollouts"
        raise SpecError(f"plan {name!r} measures {what}, not single operations: `excise measure --plan {name}` runs it")
    return plan


def load_pools(name: str) -> PoolPlanFile:
    """The same, where only claims will do."""
    plan = load(name)
    if not isinstance(plan, PoolPlanFile):
        raise SpecError(f"plan {name!r} measures no claims: `excise measure --plan {name}` runs it")
    return plan


def like(path: Path) -> RolloutPlan:
    """The plan of the run in the results directory `path`, cell by cell."""
    header, _ = scan(path)
    plan = header.plan
    grids = tuple(
        Grid(
            addresses=(cell.address,),
            workloads=(cell.workload,),
            states=(cell.state,),
            shells=(cell.shell,),
            resets=(cell.reset,),
            concurrencies=(cell.concurrency,),
            arrivals_per_s=(cell.arrivals_per_s,),
            think_s=("recorded" if cell.think_s == AS_RECORDED else cell.think_s,),
        )
        for cell in plan.cells
    )
    return RolloutPlan(
        grids=grids,
        image=plan.image,
        reference=plan.reference,
        seed=plan.seed,
        blocks=plan.blocks,
        budget_s=plan.budget_s,
        warmup_blocks=plan.warmup_blocks,
        rerun_noisy=plan.rerun_noisy,
    )


def names() -> list[str]:
    return sorted(entry.name.removesuffix(".toml") for entry in files(__name__).iterdir() if entry.name.endswith(".toml"))


def _text(name: str) -> str:
    own = files(__name__) / f"{name}.toml"
    try:
        return Path(name).read_text() if "/" in name or name.endswith(".toml") else own.read_text()
    except OSError:
        raise SpecError(f"there is no plan {name!r}; the package has: {', '.join(names())}") from None


def _converted(data: dict[str, Any], kind: type[AnyPlan]) -> AnyPlan:
    if kind is LatencyPlan:
        data = {key: value for key, value in data.items() if key != "kind"}
    return msgspec.convert(data, kind)
