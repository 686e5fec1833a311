"""The sentences below a table: what was done, how to read it, what is missing and why."""

from excise.report.columns import names
from excise.report.numbers import duration, percent
from excise.stats.rows import Row
from excise.stats.run import Run

UNATTRIBUTED_IS_A_BUG = 0.01


def notes(run: Run) -> list[str]:
    """One sentence or two each, in the order they matter."""
    return [*_names(run), _what(run), _how_to_read(run), *_failures(run), _instrument(run), *_skipped(run), _where(run)]


def _names(run: Run) -> list[str]:
    return [f"{name}: {row.address}" for name, row in zip(names(run), run.rows, strict=True) if name != row.address]


def _what(run: Run) -> str:
    plan, host = run.header.plan, run.header.provenance
    work = sorted({cell.workload for cell in plan.cells})
    length = next((row.actions for row in run.rows if row.actions), 0)
    return (
        f"{run.blocks} whole blocks of {', '.join(work)} ({length} actions a rollout) on image {plan.image}, after "
        f"{plan.warmup_blocks} to warm up, seed {plan.seed}; {host.cores} cores of {host.cpu}, {host.kernel}."
    )


def _how_to_read(run: Run) -> str:
    floor = next((row for row in run.rows if row.reference), None)
    if floor is None or floor.work_s is None:
        return (
            "No reference ran, so work is not known and there is no tax rate: chroot is the reference, or local on the "
            "host's own image."
        )
    parts = [
        f"Work is what the same action takes on {run.reference} in the same block: {duration(floor.work_s.value)} an action.",
        f"Start + {floor.actions} x (dispatch + slowdown + work) + cleanup is the mean total; tax is all of it but the work.",
        "Ranges are 95 % intervals; observation is inside dispatch; hours are worker-hours; CPU is the whole host's.",
    ]
    if any(row.estimated for row in run.rows):
        parts.append("~ no clock runs inside: dispatch is that of a null action beside each action.")
    return " ".join(parts)


def _failures(run: Run) -> list[str]:
    return [_failed(row) for row in run.rows if row.failures]


def _failed(row: Row) -> str:
    assert row.success is not None
    share, ends = percent(row.success)
    reasons = "; ".join(f"{count} x {reason}" for reason, count in row.failures[:3])
    more = f"; and {len(row.failures) - 3} other reasons" if len(row.failures) > 3 else ""
    return f"{row.address} succeeded in {row.n} of {row.attempted} trials ({share} %, {ends}): {reasons}{more}."


def _instrument(run: Run) -> str:
    harness = run.header.harness
    own = "" if harness is None else f"The harness itself takes {duration(harness.rollout_s)} a rollout"
    shares = [
        (row.unattributed_s.value / row.total_s.value, row.address)
        for row in run.rows
        if row.unattributed_s is not None and row.total_s is not None and row.total_s.value > 0
    ]
    if not shares:
        return own + "."
    worst, address = max(shares)
    text = f"{own}; at most {100 * worst:.2f} % of a row's time is unattributed ({address})"
    if worst > UNATTRIBUTED_IS_A_BUG:
        return f"{text}: above 1 % that is a fault of the meter, please report it."
    return f"{text}."


def _skipped(run: Run) -> list[str]:
    return [f"Skipped {one.address}: {one.reason}." for one in run.skipped]


def _where(run: Run) -> str:
    return f"Results: {run.path}"
