"""`excise project`: from one rollout to a million, with the interval carried through."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import App, Parameter

from excise.errors import SpecError

if TYPE_CHECKING:
    from excise.stats.projection import Scenario
    from excise.stats.subjects import Subject

app = App(
    name="project",
    help_epilogue="""\
Worker-hours are W = N x T / 3600: hours of one worker that does N rollouts of T seconds in turn. Give a results directory, \
or a rollout's own times.

Examples:
  excise project --seconds 42.52 --rollouts 1e6
  excise project --seconds 42.52 --seconds 23.38
  excise project --per-action-ms 10 --actions 150
  excise project results/docker --actions 150 --rollouts 1e6 --deadline 24h
  excise project results/docker --think 5 --failure-rate 0.02 --json""",
)

_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@app.default
def project(
    results: Path | None = None,
    *,
    seconds: Annotated[tuple[float, ...], Parameter(negative="", show_default=False)] = (),
    per_action_ms: Annotated[tuple[float, ...], Parameter(negative="", show_default=False)] = (),
    actions: int = 150,
    rollouts: float = 1e6,
    deadline: str | None = None,
    think: float = 0.0,
    reuse: int = 1,
    failure_rate: float | None = None,
    json: Annotated[bool, Parameter(negative="", show_default=False)] = False,
) -> int:
    """Project rollouts to worker-hours, to workers for a deadline, and over length, scale, think time, reuse and failures.

    Parameters
    ----------
    results
        A results directory; each of its rows is projected, with its interval.
    seconds
        In place of results: what a whole rollout takes; may be given several times.
    per_action_ms
        In place of results, or beside --seconds: what each action takes.
    actions
        Actions of a rollout. Where the trials had another number, the total is composed and marked.
    rollouts
        How many rollouts.
    deadline
        When all must be done: 24h, 90m, 3d or seconds.
    think
        Seconds that a worker waits for the model after each action.
    reuse
        Rollouts in one sandbox: start and cleanup are paid once for all of them.
    failure_rate
        Share of rollouts that fail and are run again; as measured if left out.
    json
        Print the projections as JSON.
    """
    from excise.stats.projection import Scenario  # noqa: PLC0415 - `excise project --help` does not pay for it

    if (results is None) == (not seconds and not per_action_ms):
        raise SpecError("project either a results directory, or times by --seconds and --per-action-ms")
    deadline_s = None if deadline is None else duration_s(deadline)
    scenario = Scenario(actions=actions, rollouts=rollouts, think_s=think, reuse=reuse, failure_rate=failure_rate or 0.0)
    subjects = _subjects(results, seconds, per_action_ms, scenario, failing=failure_rate is None)
    if json:
        sys.stdout.write(_json(subjects, deadline_s))
    else:
        from excise.report.projected import text  # noqa: PLC0415 - see above

        sys.stdout.write(text(subjects, deadline_s))
    return 0


def _subjects(
    results: Path | None,
    seconds: Sequence[float],
    per_action_ms: Sequence[float],
    scenario: "Scenario",
    *,
    failing: bool,
) -> "tuple[Subject, ...]":
    from excise.stats.subjects import given, of_run  # noqa: PLC0415 - see above

    if results is None:
        return given(seconds, per_action_ms, scenario)
    from excise.stats.run import Run  # noqa: PLC0415 - see above

    return of_run(Run.read(results), scenario, failing=failing)


def _json(subjects: "Sequence[Subject]", deadline_s: float | None) -> str:
    """The same numbers for programs: infinity, which JSON does not have, is null."""
    from excise.stats.projection import project as projected  # noqa: PLC0415 - see above
    from excise.stats.projection import sensitivity, workers  # noqa: PLC0415

    found: list[dict[str, object]] = []
    for subject in subjects:
        one = projected(subject.costs, subject.scenario)
        needed = None if deadline_s is None else workers(one.total_s, one.scenario.rollouts, deadline_s)
        found.append(
            {
                "name": subject.name,
                "projection": one,
                "workers": needed,
                "sensitivity": () if subject.whole else sensitivity(subject.costs, subject.scenario),
            }
        )
    return msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n"


def duration_s(text: str) -> float:
    """`24h`, `90m`, `3d`, `3600`: seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd]?)", text.strip())
    if found is None or not float(found[1]):
        raise SpecError(f"{text!r} is not a deadline: write 24h, 90m, 3d or a number of seconds above 0")
    return float(found[1]) * _UNITS_S[found[2]]
