"""What would help most: changes of one factor, from cells that were measured side by side."""

import shlex
from collections.abc import Iterable
from typing import Literal

import msgspec

from excise.address import parse
from excise.meter.records import Cell
from excise.stats.estimate import Estimate
from excise.stats.jackknife import SIGNED, Sums
from excise.stats.projection import Costs, Scenario, line_of, worker_hours
from excise.stats.rows import Row

Change = Literal["path", "substrate", "pool", "shell", "reset", "state"]

MOST = 3
NOT_ISOLATED = frozenset({"local", "chroot", "fake", "null"})
"""Nobody is advised to run a policy's commands without a sandbox."""
_FACTORS = ("address", "state", "shell", "reset")
_SAME = ("workload", "concurrency", "think_s")
_PLANS = {"shell": "paper", "reset": "paper", "state": "fig2"}
"""Which plan of the package has cells that differ so."""
_INSTEAD = {
    "path": "{then} instead of {now}: the same sandboxes, another way to the action",
    "substrate": "{then} instead of {now}",
    "pool": "{then} instead of {now}: sandboxes made ahead",
    "shell": "{now} with shell mode {then_shell} instead of {now_shell}",
    "reset": "{now} with reset by {then_reset} instead of {now_reset}",
    "state": "{now} from {then_state} instead of {now_state}",
}


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """One change, and what it saves in a rollout of `scenario`."""

    change: Change
    now: Cell
    then: Cell
    sentence: str
    scenario: Scenario
    saving_s: Estimate
    """Per rollout."""
    saving_hours: Estimate
    """Worker-hours over all rollouts."""
    share: float
    """Of what a rollout takes now."""
    command: str
    """Shows it: measures the two side by side."""


def what_ifs(
    rows: Iterable[Row], now: Row | None = None, scenario: Scenario | None = None, most: int = MOST
) -> tuple[WhatIf, ...]:
    """At most `most` changes to `now`, at most one of a kind, what saves most first.

    A change is told only if its whole interval is a saving. Without `now`, it is the dearest row that isolates.
    """
    scenario = Scenario() if scenario is None else scenario
    isolated = [row for row in rows if row.costs is not None and parse(row.address).name not in NOT_ISOLATED]
    if now is None:
        now = max(isolated, key=lambda row: _seconds(row, scenario), default=None)
    if now is None or now.costs is None:
        return ()
    found = [_pair(now, then, scenario) for then in isolated]
    best: dict[Change, WhatIf] = {}
    for one in sorted((one for one in found if one is not None), key=lambda one: -one.saving_s.value):
        best.setdefault(one.change, one)
    return tuple(best.values())[:most]


def _seconds(row: Row, scenario: Scenario) -> float:
    return 0.0 if row.costs is None else scenario.seconds(row.costs.line)


def _change(now: Cell, then: Cell) -> Change | None:
    """The one factor in which two cells differ; None if they differ in none, in several, or in what is compared."""
    if any(getattr(now, name) != getattr(then, name) for name in _SAME):
        return None
    differ = [name for name in _FACTORS if getattr(now, name) != getattr(then, name)]
    if len(differ) != 1:
        return None
    match differ[0]:
        case "address":
            mine, theirs = parse(now.address), parse(then.address)
            if mine.name != theirs.name or mine.options != theirs.options:
                return "substrate"
            return "path" if mine.wrappers == theirs.wrappers else "pool" if mine.guest == theirs.guest else "substrate"
        case "state":
            return "state"
        case "shell":
            return "shell"
        case _:
            return "reset"


def _pair(now: Row, then: Row, scenario: Scenario) -> WhatIf | None:
    change = _change(now.cell, then.cell)
    if change is None or now.costs is None or then.costs is None:
        return None
    saving = difference_s(now.costs, then.costs, scenario)
    words = {f"{which}_{name}": getattr(row.cell, name) for which, row in (("now", now), ("then", then)) for name in _FACTORS}
    sentence = _INSTEAD[change].format(now=now.address, then=then.address, **words)
    return _told(change, (now, then), sentence, scenario, saving)


def difference_s(first: Costs, second: Costs, scenario: Scenario) -> Estimate | None:
    """What a rollout of `scenario` takes more on the first than on the second, within blocks; None if they share none."""
    both = None if first.blocks is None or second.blocks is None else first.blocks.beside(second.blocks)
    if both is None:
        return None

    def saving(sums: Sums) -> float:
        return scenario.seconds(line_of(sums, "a.")) - scenario.seconds(line_of(sums, "b."))

    return both.estimate(saving, SIGNED)


def _told(change: Change, pair: tuple[Row, Row], sentence: str, scenario: Scenario, saving: Estimate | None) -> WhatIf | None:
    now, then = pair
    if saving is None or saving.value <= 0 or (saving.low is not None and saving.low <= 0):
        return None
    return WhatIf(
        change=change,
        now=now.cell,
        then=then.cell,
        sentence=sentence,
        scenario=scenario,
        saving_s=saving,
        saving_hours=worker_hours(saving, scenario.rollouts),
        share=saving.value / _seconds(now, scenario),
        command=_command(change, now.cell, then.cell),
    )


def _command(change: Change, now: Cell, then: Cell) -> str:
    """Addresses are named on the command line; the other factors are a plan's."""
    words = ["excise", "measure", *dict.fromkeys((now.address, then.address))]
    plan = _PLANS.get(change)
    return shlex.join([*words, *(["--plan", plan] if plan else ["--workload", now.workload])])
