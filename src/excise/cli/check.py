"""`excise check`: hold substrates against the contract, or the meter against known truths, one line a case as it ends."""

import asyncio
import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter

from excise.address import parse
from excise.api import connect
from excise.cli.sentences import FAILED
from excise.contract.suite import CASES, DEADLINE_S, Outcome, Verdict, check, grouped, named
from excise.errors import SandboxLost, SpecError
from excise.sandbox import Sandbox
from excise.spec import Spec
from excise.substrate import Substrate

METER = "meter"
_MARKS: dict[Outcome, str] = {"kept": "kept", "broken": "BROKEN", "not declared": "-", "not run": "?"}

app = App(
    name="check",
    help_epilogue="""\
`excise check meter` tries the measuring itself: simulated experiments whose truth is known, the same substrate as two rows, \
a delay that must be found.

Exit code: 1 if a promise is broken or no sandbox can be made; 2 when the request is wrong.

Examples:
  excise check local
  excise check docker bubblewrap --image excise/base -j 8
  excise check chroot --case cwd --case stdin-reaches
  excise check namespace --group state
  excise check vm --share --deadline 300
  excise check fake:broken=cwd
  excise check --dry-run 'command?file=docs/recipes/aws-ec2.toml'
  excise check meter
  excise check --list""",
)


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One verdict of `--json`."""

    address: str
    case: str
    promise: str
    outcome: Outcome
    reason: str
    duration_s: float


@app.default
def run_check(
    *addresses: str,
    case: Annotated[tuple[str, ...], Parameter(negative="", show_default=False)] = (),
    group: Annotated[tuple[str, ...], Parameter(negative="", show_default=False)] = (),
    list_: Annotated[bool, Parameter(name="--list", negative="", show_default=False)] = False,
    image: str = "host",
    jobs: Annotated[int, Parameter(name=("--jobs", "-j"))] = 1,
    dry_run: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    share: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    sandboxes: int | None = None,
    deadline: float = DEADLINE_S,
    json: Annotated[bool, Parameter(negative="", show_default=False)] = False,
) -> int:
    """Check that substrates keep every promise of the contract, as far as they declare the ability for it; or the meter.

    Parameters
    ----------
    addresses
        The substrates to check, one after another; `meter` for the instrument itself.
    case
        Only this case; may be given several times.
    group
        Only the cases about this, as `state`, `file` or `session`; may be given several times.
    list_
        Show the cases and why each is there, and check nothing.
    image
        The root filesystem to check on.
    jobs
        How many cases may run at a time; those that look at what all share run alone, at the end.
    dry_run
        Of a recipe: show each command as it would be run, let its program read it without doing it, and make nothing.
    share
        Cases that allow it have one sandbox, one after another: for substrates whose sandboxes take long to make.
    sandboxes
        Make at most so many; cases that need one more are told as not run.
    deadline
        Seconds that a case may take; what it waits for inside grows with it.
    json
        Print the verdicts as JSON at the end, and nothing else.
    """
    chosen = (*case, *(one.name for one in grouped(group)))
    if list_:
        _print_cases(chosen)
        return 0
    if not addresses:
        raise SpecError("there is nothing to check: name a substrate, as in `excise check local`")
    if dry_run:
        from excise.cli.check_dry_run import show  # noqa: PLC0415 - only recipes have one

        return show(addresses, image, json=json)
    only = {one.name for one in named(chosen)} if chosen else None
    lines: list[Line] = []
    for address in addresses:
        if address == METER:
            lines.extend(_check_meter(_ignore_line if json else _print_line))
            continue
        how: dict[str, Any] = {"only": only, "jobs": jobs, "share": share, "sandboxes": sandboxes, "deadline_s": deadline}
        verdicts = _runner(address)(_check(address, Spec(image=image), how, _ignore if json else _print_verdict))
        lines.extend(_line(address, verdict) for verdict in verdicts)
        if not json:
            _print_summary(address, verdicts)
    if json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(lines), indent=2).decode() + "\n")
    return FAILED if any(line.outcome == "broken" for line in lines) else 0


def _check_meter(on_line: "Callable[[Line], None]") -> list[Line]:
    """The instrument's findings, each told as it is known."""
    from excise.cli.instrument import findings  # noqa: PLC0415 - who checks a substrate does not pay for the meter

    lines: list[Line] = []
    begun = time.monotonic()
    for finding in findings():
        ended = time.monotonic()
        lines.append(
            Line(
                address=METER,
                case=finding.name,
                promise=finding.promise,
                outcome="not declared" if finding.kept is None else "kept" if finding.kept else "broken",
                reason=finding.seen,
                duration_s=ended - begun,
            )
        )
        on_line(lines[-1])
        begun = ended
    return lines


def _runner(address: str) -> Callable[[Coroutine[Any, Any, tuple[Verdict, ...]]], tuple[Verdict, ...]]:
    """The fake lives on a virtual clock: its hours of sleeping pass at once. All others share ours."""
    if parse(address).name != "fake":
        return asyncio.run
    from excise.substrates.fake import virtual_time  # noqa: PLC0415 - only the fake needs it

    return virtual_time.run


async def _check(
    address: str, spec: Spec, how: Mapping[str, Any], on_verdict: Callable[[Verdict], None]
) -> tuple[Verdict, ...]:
    async with connect(address) as substrate:
        if not how["share"]:  # the one that is shared shows it as well
            await _make_one(substrate, spec)
        return await check(substrate, spec, on_verdict=on_verdict, **how)


async def _make_one(substrate: Substrate, spec: Spec) -> None:
    """A wrong request, or a machine that can make no sandbox at all, is one sentence, and breaks no promise."""
    with contextlib.suppress(SandboxLost):
        async with Sandbox(substrate, spec, ttl_s=600.0):
            pass


def _line(address: str, verdict: Verdict) -> Line:
    return Line(
        address=address,
        case=verdict.case.name,
        promise=verdict.case.promise,
        outcome=verdict.outcome,
        reason=verdict.reason,
        duration_s=verdict.duration_s,
    )


def _ignore(_: Verdict) -> None:
    pass


def _print_verdict(verdict: Verdict) -> None:
    sys.stdout.write(f"{_MARKS[verdict.outcome]:6}  {verdict.duration_s:6.2f} s  {verdict.case.name}\n")
    if verdict.outcome == "broken":
        sys.stdout.write(f"        promised: {verdict.case.promise}\n        but: {verdict.reason}\n")
    sys.stdout.flush()


def _ignore_line(_: Line) -> None:
    pass


def _print_line(line: Line) -> None:
    sys.stdout.write(f"{_MARKS[line.outcome]:6}  {line.duration_s:6.2f} s  {line.case}: {line.reason}\n")
    if line.outcome == "broken":
        sys.stdout.write(f"        promised: {line.promise}\n")
    sys.stdout.flush()


def _print_summary(address: str, verdicts: Sequence[Verdict]) -> None:
    count = Counter(verdict.outcome for verdict in verdicts)
    counted = ", ".join(f"{count[outcome]} {outcome}" for outcome in _MARKS)
    sys.stdout.write(f"{address}: {counted}\n")


def _print_cases(chosen: Collection[str]) -> None:
    for one in named(chosen) if chosen else CASES:
        needs = f" (needs {', '.join(one.needs)})" if one.needs else ""
        sys.stdout.write(f"{one.name}{needs}\n    {one.promise}\n    why: {one.why}\n")
