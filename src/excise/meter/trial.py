"""One trial: watch the host, run one rollout under a trace, check its answers, write it all down."""

import asyncio
import secrets
from collections.abc import Sequence

import msgspec

from excise.action import Action, Observation
from excise.clock import now_ns
from excise.errors import SubstrateError
from excise.meter import identity
from excise.meter.answers import digests
from excise.meter.host import Used, between, counters
from excise.meter.null import null_of
from excise.meter.places import Place
from excise.meter.privacy import without_home
from excise.meter.records import AS_RECORDED, IDENTITY, NULL, THINK, Quiet, ShellMode
from excise.meter.shells import in_mode
from excise.sandbox import Sandbox
from excise.trace import Span, Trace, recording, span
from excise.workloads.workload import Turn, Workload

_SANDBOX_DIGITS = 8
_LONGEST_REASON = 300


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """What the meter adds to a workload's actions, or changes about them."""

    nulls: bool = False
    """Beside each action runs a null action."""
    shell: ShellMode = "exec"
    think_s: float = 0.0
    host: identity.Host | None = None
    """Of this meter, to ask each sandbox who it is; None: it is not asked."""


PLAIN = Conditions()


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """What one trial saw."""

    wall_ns: int
    apart_ns: int
    apart: Used
    spans: tuple[Span, ...]
    failure: str | None
    answers: tuple[str, ...] = ()
    """A digest of each answer; empty if it failed."""
    who: identity.Answer = identity.Answer()


class Apart:
    """What the instrument itself takes inside a rollout, to be taken off its time and its CPU."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.wall_ns = 0
        self.used = Used(written_bytes=0)

    @property
    def sandbox(self) -> str:
        """As spans name it."""
        return self._trace.spans[-1].sandbox if self._trace.spans else ""

    async def run_null(self, box: Sandbox, action: Action) -> None:
        """The null action that goes with `action`."""
        answer = await self.run(box, null_of(action), NULL)
        if not answer.ok:
            raise SubstrateError(f"the null action beside {type(action).__name__} failed: {answer.text or answer.end.value}")

    async def run(self, box: Sandbox, action: Action, name: str) -> Observation:
        """An action of the instrument's; its span has this name."""
        begun, before, spans = now_ns(), counters(), len(self._trace.spans)
        try:
            return await box.run(action)
        finally:
            for one in self._trace.spans[spans:]:
                one.name = name
            self.used += between(before, counters())
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


async def roll_out(place: Place, workload: Workload, conditions: Conditions = PLAIN) -> Rollout:
    """One rollout of `workload`. Whatever goes wrong in it is its failure, told in one sentence, and nobody else's."""
    nonce = secrets.token_hex(8)
    turns = workload.turns(nonce)
    trace = Trace()
    acts = _Acts(turns, conditions, Apart(trace), identity.question(nonce))
    error: Exception | None = None
    with recording(trace):
        sandbox = place.sandbox(trace)
        begun = now_ns()
        try:
            async with sandbox as box:
                await acts.run(box)
            wall_ns = now_ns() - begun
        except Exception as caught:  # noqa: BLE001 - a fault of one substrate must not cost the others their rows
            wall_ns = now_ns() - begun
            error = caught
    reason = _described(error) if error is not None else _fault(turns, acts.seen)
    return Rollout(
        wall_ns=wall_ns,
        apart_ns=acts.apart.wall_ns,
        apart=acts.apart.used,
        spans=tuple(_relative(one, begun) for one in trace.spans),
        failure=None if reason is None else _clean(reason, nonce),
        answers=digests(turns, acts.seen, nonce) if reason is None else (),
        who=acts.who(),
    )


class _Acts:
    """The actions of one rollout, and what came of them."""

    def __init__(self, turns: Sequence[Turn], conditions: Conditions, apart: Apart, question: Action) -> None:
        self._actions = [in_mode(turn.action, conditions.shell) for turn in turns]
        self._think_s = [turn.think_s if conditions.think_s == AS_RECORDED else conditions.think_s for turn in turns]
        self._conditions = conditions
        self._question = question
        self._answer: Observation | None = None
        self.apart = apart
        self.seen: list[Observation] = []

    async def run(self, box: Sandbox) -> None:
        nulls = self._conditions.nulls
        for index, action in enumerate(self._actions):
            if index and self._think_s[index]:
                with span(THINK, self.apart.sandbox):
                    await asyncio.sleep(self._think_s[index])
            # The null action goes before and after in turn, so that neither always finds the caches the other warmed.
            if nulls and index % 2:
                await self.apart.run_null(box, action)
            self.seen.append(await box.run(action))
            if nulls and not index % 2:
                await self.apart.run_null(box, action)
        if self._conditions.host is not None:
            # Last, so that the rollout's own first action is the first.
            self._answer = await self.apart.run(box, self._question, IDENTITY)

    def who(self) -> identity.Answer:
        """What the sandbox said of itself; it is understood after the rollout, so that understanding is no part of its time."""
        host = self._conditions.host
        return identity.Answer() if self._answer is None or host is None else identity.understood(self._answer, host)


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


def _relative(one: Span, begun_ns: int) -> Span:
    return msgspec.structs.replace(
        one,
        sandbox=one.sandbox[:_SANDBOX_DIGITS],
        start_ns=one.start_ns - begun_ns,
        end_ns=one.end_ns - begun_ns,
    )
