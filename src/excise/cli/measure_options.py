"""What `excise measure`'s command line said, and the plan that it asks for."""

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from excise.errors import SpecError

if TYPE_CHECKING:
    from excise.plans import PoolPlanFile, RolloutPlan

DEFAULT_PLAN = "quick"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line said."""

    plan: str | None = None
    budget: float | None = None
    blocks: int | None = None
    image: str | None = None
    workload: str | None = None
    reference: str | None = None
    seed: int | None = None
    out: Path | None = None
    like: Path | None = None
    resume: Path | None = None
    control: Path | None = None
    markdown: bool = False

    def given(self) -> list[str]:
        """The names of the options that were given."""
        return [name for name in self.__struct_fields__ if getattr(self, name) not in (None, False)]

    def refuse_beside(self, option: str, addresses: tuple[str, ...], *, taken: frozenset[str] = frozenset()) -> None:
        """A SpecError if something was given beside `--option`, which has all of it from the run that it names."""
        given = set(self.given()) - {option, "markdown", *taken}
        extra = [*(f"--{name}" for name in sorted(given)), *addresses]
        if extra:
            raise SpecError(f"--{option} goes by the run's own plan: leave {', '.join(extra)} out")

    def tokens(self) -> list[str]:
        """The command line that says this."""
        found: list[str] = []
        for name in self.given():
            value = getattr(self, name)
            found += [f"--{name}"] if value is True else [f"--{name}", str(value)]
        return found


def wanted(options: Options) -> "RolloutPlan":
    """The plan, with what the options say instead."""
    from excise.plans import like, load_rollouts, overridden  # noqa: PLC0415 - `excise measure --help` does not pay for the meter

    if options.like is not None:
        if options.plan is not None:
            raise SpecError("--like repeats the plan of those results: leave --plan out")
        base = like(options.like)
    else:
        base = load_rollouts(options.plan or DEFAULT_PLAN)
    return overridden(
        base,
        workload=options.workload,
        image=options.image,
        reference=options.reference,
        seed=options.seed,
        blocks=options.blocks,
        budget_s=options.budget,
    )


def refuse_plan_names(addresses: tuple[str, ...]) -> None:
    """A SpecError if what was meant as a plan was given as a substrate."""
    if not addresses:
        return
    from excise.plans import names  # noqa: PLC0415 - see above
    from excise.registry import names as substrates  # noqa: PLC0415

    plans = set(names()) - set(substrates())
    for one in addresses:
        if one in plans:
            raise SpecError(f"{one} is a plan, not a substrate: write --plan {one}")


def name_of(options: Options) -> str:
    """Of the plan, as results have it."""
    return "" if options.like is not None else Path(options.plan or DEFAULT_PLAN).stem


def is_latencies(plan: str) -> bool:
    """Whether it measures single operations."""
    from excise.plans import LatencyPlan, load  # noqa: PLC0415 - see above

    return isinstance(load(plan), LatencyPlan)


def pools_wanted(options: Options) -> "PoolPlanFile | None":
    """The plan of claims that the options ask for, with what else they say; None if they ask for something else."""
    if options.plan is None or options.like is not None:
        return None
    from excise.plans import PoolPlanFile, load, overridden_pools  # noqa: PLC0415 - see above

    plan = load(options.plan)
    if not isinstance(plan, PoolPlanFile):
        return None
    extra = sorted(set(options.given()) & {"workload", "reference"})
    if extra:
        raise SpecError(f"plan {options.plan!r} measures claims, which take no {extra[0]}: leave it out")
    return overridden_pools(plan, image=options.image, seed=options.seed, blocks=options.blocks, budget_s=options.budget)
