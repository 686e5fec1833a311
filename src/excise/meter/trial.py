"""One trial: watch the host, run one rollout under a trace, check its answers, write it all down."""

import asyncio
import secrets
from collections.abc import Sequence

import msgspec

from excise.action import Action, Observation
from excise.clock import now_ns
from excise.errors import SubstrateError
from excise.meter.host import counters
from excise.meter.null import null_of
from excise.meter.privacy import without_home
from excise.meter.records import NULL, Quiet
from excise.sandbox import Sandbox
from excise.spec import Spec
from excise.substrate import Substrate
from excise.trace import Span, Trace, recording
from excise.workloads.workload import Turn, Workload

_SANDBOX_DIGITS = 8
_LONGEST_REASON = 300


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """What one trial saw."""

    wall_ns: int
    apart_ns: int
    spans: tuple[Span, ...]
    failure: str | None
    cpu_s: float
    steal_s: float


class Apart:
    """What the instrument itself takes inside a rollout, to be taken off its time and its CPU."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.wall_ns, self.busy_s, self.steal_s = 0, 0.0, 0.0

    async def run_null(self, box: Sandbox, action: Action) -> None:
        """The null action that goes with `action`; its span is called so."""
        begun, before = now_ns(), counters()
        try:
            answer = await box.run(null_of(action))
            self._trace.spans[-1].name = NULL
            if not answer.ok:
                raise SubstrateError(
                    f"the null action beside {type(action).__name__} failed: {answer.text or answer.end.value}"
                )
        finally:
            after = counters()
            self.busy_s += after.busy_s - before.busy_s
            self.steal_s += after.steal_s - before.steal_s
            self.wall_ns += now_ns() - begun


async def watch(quiet_s: float) -> Quiet:
    """The host for a moment while nothing of ours runs."""
    before, begun = counters(), now_ns()
    # Not a pause for something to happen: the window is what is measured.
    await asyncio.sleep(quiet_s)
    after = counters()
    pressure = (before.pressure_ns, after.pressure_ns)
    return Quiet(
        window_ns=now_ns() - begun,
        pressure_ns=None if pressure[0] is None or pressure[1] is None else pressure[1] - pressure[0],
        pressure_avg10=after.pressure_avg10,
        busy_s=round(after.busy_s - before.busy_s, 6),
        steal_s=round(after.steal_s - before.steal_s, 6),
    )


async def roll_out(substrate: Substrate, workload: Workload, image: str, *, nulls: bool) -> Rollout:
    """One rollout of `workload`. Whatever goes wrong in it is its failure, told in one sentence, and nobody else's."""
    nonce = secrets.token_hex(8)
    turns, spec = workload.turns(nonce), workload.spec(image)
    trace, seen = Trace(), list[Observation]()
    apart = Apart(trace)
    error: Exception | None = None
    before, begun = counters(), now_ns()
    with recording(trace):
        try:
            await _act(substrate, spec, turns, seen, apart if nulls else None)
        except Exception as caught:  # noqa: BLE001 - a fault of one substrate must not cost the others their rows
            error = caught
    wall_ns = now_ns() - begun
    after = counters()
    reason = _described(error) if error is not None else _fault(turns, seen)
    return Rollout(
        wall_ns=wall_ns,
        apart_ns=apart.wall_ns,
        spans=tuple(_relative(span, begun) for span in trace.spans),
        failure=None if reason is None else _clean(reason, nonce),
        cpu_s=round(after.busy_s - before.busy_s - apart.busy_s, 6),
        steal_s=round(after.steal_s - before.steal_s - apart.steal_s, 6),
    )


async def _act(substrate: Substrate, spec: Spec, turns: Sequence[Turn], seen: list[Observation], apart: Apart | None) -> None:
    async with Sandbox(substrate, spec) as box:
        for index, turn in enumerate(turns):
            # The null action goes before and after in turn, so that neither always finds the caches the other warmed.
            if apart is not None and index % 2:
                await apart.run_null(box, turn.action)
            seen.append(await box.run(turn.action))
            if apart is not None and not index % 2:
                await apart.run_null(box, turn.action)


def _fault(turns: Sequence[Turn], seen: Sequence[Observation]) -> str | None:
    """The first wrong answer. Answers are judged after the rollout, so that judging is no part of its time."""
    for number, (turn, answer) in enumerate(zip(turns, seen, strict=True), 1):
        reason = turn.expect.fault(answer)
        if reason is not None:
            return f"action {number} ({type(turn.action).__name__}) did other work: {reason}"
    return None


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _clean(reason: str, nonce: str) -> str:
    """The same failure reads the same in every trial, and names nobody's home directory."""
    return " ".join(without_home(reason.replace(nonce, "NONCE")).split())[:_LONGEST_REASON]


def _relative(span: Span, begun_ns: int) -> Span:
    return msgspec.structs.replace(
        span,
        sandbox=span.sandbox[:_SANDBOX_DIGITS],
        start_ns=span.start_ns - begun_ns,
        end_ns=span.end_ns - begun_ns,
    )
