"""The sentences below a table: what was done, how to read it, what is missing and why."""

from collections.abc import Sequence

from excise.meter.privacy import without_home
from excise.meter.records import Skipped
from excise.report.columns import CPU, HOURS, Column, names
from excise.report.numbers import duration, percent, short
from excise.stats.jackknife import FEWEST_BLOCKS
from excise.stats.rows import Row
from excise.stats.run import Run

UNATTRIBUTED_IS_A_BUG = 0.01


def notes(run: Run, shown: Sequence[Column], *, page: bool = False) -> list[str]:
    """One sentence or more each, in the order they matter, for a table with these columns.

    A page has what failed, what was skipped and where the results are in sections of their own.
    """
    elsewhere = [] if page else [*_skipped(run), _where(run)]
    return [
        *_names(run),
        _what(run),
        *_hours(run, shown),
        "; ".join(f"{column.title}: {column.meaning}" for column in shown if column.meaning) + ".",
        _how_to_read(run),
        *([] if page else _failures(run)),
        *_unpaired(run),
        *_nothing_set_up(run),
        _instrument(run, shown),
        *elsewhere,
    ]


def _names(run: Run) -> list[str]:
    return [f"{name}: {address}" for address, name in names(run).items() if name != address]


def _what(run: Run) -> str:
    plan, host = run.header.plan, run.header.provenance
    work = sorted({cell.workload for cell in plan.cells})
    lengths = ", ".join(map(str, sorted({row.actions for row in run.rows if row.actions}) or [0]))
    blocks = "1 whole block" if run.blocks == 1 else f"{run.blocks} whole blocks"
    return (
        f"{blocks} of {', '.join(work)} ({lengths} actions a rollout) on image {plan.image}, after "
        f"{plan.warmup_blocks} to warm up, seed {plan.seed}; {host.cores} cores of {host.cpu}, {host.kernel}."
    )


def _hours(run: Run, shown: Sequence[Column]) -> list[str]:
    """What the table has no room for in its own column."""
    if any(column.title == HOURS for column in shown):
        return []
    labels = names(run)
    found = [(row.name.replace(row.address, labels[row.address]), row.worker_hours()) for row in run.rows]
    known = ", ".join(f"{name} {short(hours.value)}" for name, hours in found if hours is not None)
    return [f"Worker-hours per million rollouts: {known}."] if known else []


def _how_to_read(run: Run) -> str:
    floors = [row for row in run.rows if row.reference and row.work_s is not None]
    parts: list[str] = []
    if not floors and run.reference is not None:
        parts.append(f"The reference ({run.reference}) did not succeed, so work is not known and there is no tax rate.")
    elif not floors:
        parts.append(
            "No reference ran, so work is not known and there is no tax rate: chroot+guest is the reference, or chroot, or "
            "local on the host's own image."
        )
    else:
        several = len({row.cell.workload for row in floors}) > 1
        took = {row.cell.workload: duration(row.work_s.value) for row in floors if row.work_s is not None}
        here = ", ".join(f"{time} on {workload}" if several else time for workload, time in took.items())
        parts.append(f"Work is what the same action takes on {run.reference} in the same block, here {here}.")
    if run.blocks < FEWEST_BLOCKS:
        parts.append(f"Below {FEWEST_BLOCKS} blocks there are no intervals.")
    else:
        parts.append("low..high is a number's 95 % interval.")
    if any(row.estimated for row in run.rows):
        parts.append("~: no clock runs inside; dispatch is that of a null action beside each action.")
    return " ".join(parts)


def _failures(run: Run) -> list[str]:
    several = len({row.cell.workload for row in run.rows}) > 1
    return [_failed(row, f" on {row.cell.workload}" if several else "") for row in run.rows if row.failures]


def _failed(row: Row, where: str) -> str:
    assert row.success is not None
    share, ends = percent(row.success)
    reasons = "; ".join(f"{count} x {reason}" for reason, count in row.failures[:3])
    more = f"; and {len(row.failures) - 3} other reasons" if len(row.failures) > 3 else ""
    return f"{row.name}{where} succeeded in {row.n} of {row.attempted} trials ({share} %, {ends}): {reasons}{more}."


def _unpaired(run: Run) -> list[str]:
    if run.reference is None:
        return []
    return [
        f"{row.address}: in {row.n - row.paired} of its {row.n} trials the reference failed; they are in p50, p95 and "
        f"{HOURS} alone."
        for row in run.rows
        if 0 < row.paired < row.n
    ]


def _nothing_set_up(run: Run) -> list[str]:
    """Who keeps the state after set-up pays for it once, before the trials, and must not look as if there were none."""
    paid = {row.cell.workload for row in run.rows if row.setup_s is not None}
    kept = dict.fromkeys(
        row.name
        for row in run.rows
        if row.n and row.setup_s is None and row.reset_s is None and row.cell.reset == "recreate" and row.cell.workload in paid
    )
    if not kept:
        return []
    verb = "starts" if len(kept) == 1 else "start"
    return [
        f"{', '.join(kept)} {verb} from the state after set-up, kept from an earlier rollout; the others set up every time."
    ]


def _instrument(run: Run, shown: Sequence[Column]) -> str:
    harness = run.header.harness
    parts = [] if harness is None else [f"The harness itself takes {duration(harness.rollout_s)} a rollout"]
    shares = [
        (row.unattributed_s.value / row.total_s.value, row.name)
        for row in run.rows
        if row.unattributed_s is not None and row.total_s is not None and row.total_s.value > 0
    ]
    if shares:
        # Below zero would be a fault too: something was counted twice.
        worst, name = max(shares, key=lambda share: abs(share[0]))
        fault = ": above 1 % that is a fault of the meter, please report it" if abs(worst) > UNATTRIBUTED_IS_A_BUG else ""
        parts.append(f"at most {100 * worst:.2f} % of a row's time is unattributed ({name}){fault}")
    if run.background_cores is not None and any(column.title == CPU for column in shown):
        parts.append(f"before trials {short(run.background_cores)} cores were busy with something else, which CPU includes")
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."


def _skipped(run: Run) -> list[str]:
    return [f"Skipped {skipped_name(one)}: {one.reason}." for one in run.skipped]


def skipped_name(one: Skipped) -> str:
    """The address, and which of its cells if only one is missing."""
    if one.cell is None:
        return one.address
    factors = "".join(f", {name} {value}" for name, value in one.cell.factors().items())
    return f"{one.address} on {one.cell.workload}{factors}"


def _where(run: Run) -> str:
    return f"Results: {without_home(str(run.path))}"
