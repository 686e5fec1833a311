"""The paper's two tables in form: what small costs become at scale, and what whole rollouts do."""

from excise.report.facts import Facts, family
from excise.report.numbers import duration, interval, short
from excise.report.parts import Table
from excise.stats.estimate import Estimate
from excise.stats.projection import LONG, MILLION, Scenario, project, worker_hours
from excise.stats.rows import Row
from excise.stats.whatif import difference_s

_UNITS = (("1 s a rollout", 1.0, 1), ("10 ms an action", 0.01, LONG), ("100 ms an action", 0.1, LONG))


def amplification(facts: Facts) -> Table:
    """Table 1: a cost once a rollout or once an action, over a million rollouts of 150 actions."""
    body = [(name, "by definition", _hours(Estimate(cost_s), times), "-") for name, cost_s, times in _UNITS]
    for row in _by_cost(facts):
        if row.start_s is not None and row.cleanup_s is not None and row.costs is not None:
            fixed = row.costs.estimate(lambda line: line.fixed_s)
            body.append(_line(f"{row.name}: start, set-up and cleanup", fixed, 1))
        if row.dispatch_s is not None:
            body.append(_line(f"{row.name}: dispatch of an action", row.dispatch_s, LONG))
    heads = ("cost", "time", f"worker-hours at {MILLION:,} x {LONG}", "95 % interval")
    return Table(name="table1", title="Table 1: what small costs become at scale", heads=heads, rows=tuple(body))


def _line(name: str, cost: Estimate, times: int) -> tuple[str, str, str, str]:
    return name, duration(cost.value), _hours(cost, times), interval(worker_hours(cost, times * MILLION)) or "-"


def _hours(cost: Estimate, times: int) -> str:
    return short(worker_hours(cost, times * MILLION).value)


def whole_rollouts(facts: Facts) -> Table:
    """Table 2: a rollout of 150 actions, a million of them, and how much less than on the dearest."""
    scenario, rows = Scenario(), _by_cost(facts)
    body: list[tuple[str, ...]] = []
    for row in rows:
        assert row.costs is not None
        found = project(row.costs, scenario)
        less = difference_s(rows[0].costs, row.costs, scenario) if rows[0].costs and row is not rows[0] else None
        saved = None if less is None else worker_hours(less)
        body.append(
            (
                row.name,
                duration(found.total_s.value) + (" (composed)" if found.composed else ""),
                short(found.hours.value),
                interval(found.hours) or "-",
                "-" if saved is None else short(saved.value),
                "-" if saved is None else interval(saved) or "-",
            )
        )
    heads = (
        "substrate",
        f"a rollout of {LONG}",
        "worker-hours of 1M",
        "95 % interval",
        "less than the first",
        "95 % interval",
    )
    title = f"Table 2: a million rollouts of {LONG} actions like those of {family(facts.workload)}"
    return Table(name="table2", title=title, heads=heads, rows=tuple(body))


def _by_cost(facts: Facts) -> list[Row]:
    """The dearest first."""
    scenario = Scenario()
    rows = [row for row in facts.long if row.costs is not None]
    return sorted(rows, key=lambda row: -scenario.seconds(row.costs.line) if row.costs else 0.0)
