"""Judge a substrate: run every case, each under its own deadline, and say of each whether the promise was kept."""

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Sequence
from contextlib import aclosing
from types import ModuleType
from typing import Any, Literal, NamedTuple

import msgspec

from excise.contract import (
    cases_abilities,
    cases_adopt,
    cases_apart,
    cases_commands,
    cases_diff,
    cases_files,
    cases_lives,
    cases_losses,
    cases_network,
    cases_output,
    cases_processes,
    cases_sessions,
    cases_states,
    cases_streams,
)
from excise.contract.bench import Bench
from excise.contract.bound import NeedsOwn, NotRun, Sandboxes
from excise.contract.case import Case, declared, expect
from excise.contract.sharing import Shared
from excise.errors import SpecError
from excise.handles import finish
from excise.spec import Spec
from excise.substrate import Capabilities, Substrate

DEADLINE_S = 60.0
GRACE_S = 30.0
"""For a case to end once it is cancelled, and for its sandboxes to close; longer by as much as the deadline is."""
LONGEST_REASON = 400

Outcome = Literal["kept", "broken", "not declared", "not run"]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What one case found."""

    case: Case
    outcome: Outcome
    reason: str = ""
    duration_s: float = 0.0


def _cases_of(*modules: ModuleType) -> tuple[Case, ...]:
    return tuple(value for module in modules for value in vars(module).values() if isinstance(value, Case))


GROUPS: dict[str, tuple[Case, ...]] = {
    "command": _cases_of(cases_commands),
    "output": _cases_of(cases_output),
    "life": _cases_of(cases_lives),
    "session": _cases_of(cases_sessions),
    "stream": _cases_of(cases_streams),
    "loss": _cases_of(cases_losses),
    "state": _cases_of(cases_states, cases_processes, cases_diff),
    "file": _cases_of(cases_files),
    "apart": _cases_of(cases_apart),
    "network": _cases_of(cases_network),
    "adopt": _cases_of(cases_adopt),
    "ability": _cases_of(cases_abilities),
}
CASES: tuple[Case, ...] = tuple(case for group in GROUPS.values() for case in group)
_SHARING = ("command", "output", "life", "session", "stream", "file")
"""Groups whose cases neither end, lose, limit nor reset their sandbox."""
SHARING: frozenset[str] = frozenset(case.name for group in _SHARING for case in GROUPS[group]) | {
    cases_abilities.connect_reaches_a_port.name,
    cases_apart.sandboxes_share_no_network.name,
}


def named(names: Collection[str]) -> tuple[Case, ...]:
    """The cases called so, in the suite's order; a SpecError for a name that is none."""
    unknown = sorted(set(names) - {c.name for c in CASES})
    if unknown:
        raise SpecError(f"no promise is called {', '.join(unknown)}; `excise check --list` shows them all")
    return tuple(c for c in CASES if c.name in names)


def grouped(groups: Collection[str]) -> tuple[Case, ...]:
    """The cases of these groups; a SpecError for a name that is none."""
    unknown = sorted(set(groups) - GROUPS.keys())
    if unknown:
        raise SpecError(f"no group is called {', '.join(unknown)}; there are: {', '.join(GROUPS)}")
    return tuple(case for group in groups for case in GROUPS[group])


async def check(
    substrate: Substrate,
    spec: Spec,
    *,
    only: Collection[str] | None = None,
    on_verdict: Callable[[Verdict], None] | None = None,
    deadline_s: float = DEADLINE_S,
    jobs: int = 1,
    share: bool = False,
    sandboxes: int | None = None,
) -> tuple[Verdict, ...]:
    """Run the cases (`only` these, if named), up to `jobs` at a time; `on_verdict` hears of each as it ends.

    `share`: cases that allow it have one sandbox, one after another; the others follow, with sandboxes of their own.
    `sandboxes`: at most so many are made in all; a case that needs one more is "not run". `deadline_s`: of a case; what it
    waits for inside grows with it. The verdicts come back in the suite's order.
    """
    if jobs < 1:
        raise SpecError(f"{jobs} cases at a time is not possible: say 1 or more")
    cases = CASES if only is None else named(only)
    trial = Trial(substrate, await substrate.probe(), spec, deadline_s, Sandboxes(sandboxes))
    sharing = [case for case in cases if share and case.name in SHARING]
    verdicts: dict[str, Verdict] = {}

    async def run(some: Sequence[Case], jobs: int, judged: Callable[[Case], Coroutine[Any, Any, Verdict]]) -> None:
        async with aclosing(as_they_end(some, jobs, judged)) as ended:
            async for verdict in ended:
                verdicts[verdict.case.name] = verdict
                if on_verdict is not None:
                    on_verdict(verdict)

    shared = Shared(substrate, spec, trial.sandboxes)
    try:
        # One at a time: they would else meet in the working directory.
        await run(sharing, 1, lambda case: trial.judge(case, shared))
    finally:
        await finish(shared.close())
    await run([case for case in cases if case not in sharing], jobs, trial.judge)
    return tuple(verdicts[case.name] for case in cases)


async def as_they_end(
    cases: Sequence[Case], jobs: int, judged: Callable[[Case], Coroutine[Any, Any, Verdict]]
) -> AsyncGenerator[Verdict]:
    """The verdicts as they come; those that must be alone run after the others. Whoever stops listening cancels the rest."""
    waiting = deque(cases if jobs == 1 else sorted(cases, key=lambda case: case.alone))
    running: set[asyncio.Task[Verdict]] = set()
    try:
        while waiting or running:
            while waiting and len(running) < (1 if waiting[0].alone else jobs):
                running.add(asyncio.ensure_future(judged(waiting.popleft())))
            ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                yield task.result()
    finally:
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)


async def judge(case: Case, substrate: Substrate, capabilities: Capabilities, spec: Spec, deadline_s: float) -> Verdict:
    """Run one case and close what it opened."""
    return await Trial(substrate, capabilities, spec, deadline_s, Sandboxes()).judge(case)


class Trial(NamedTuple):
    """One substrate before the suite."""

    substrate: Substrate
    capabilities: Capabilities
    spec: Spec
    deadline_s: float
    sandboxes: Sandboxes

    async def judge(self, case: Case, shared: Shared | None = None) -> Verdict:
        """Run one case and close what it opened."""
        lacking = [need for need in case.needs if not declared(self.capabilities, need)]
        if lacking:
            reason = f"{self.substrate.address} does not declare {', '.join(lacking)}"
            return Verdict(case=case, outcome="not declared", reason=reason)
        try:
            if shared is not None:
                await shared.prepare()
            return await self._judge(case, shared)
        except NeedsOwn:
            return await self.judge(case)
        except NotRun as error:
            return Verdict(case=case, outcome="not run", reason=str(error))

    async def _judge(self, case: Case, shared: Shared | None) -> Verdict:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        patience = max(1.0, self.deadline_s / DEADLINE_S)
        grace_s = GRACE_S * patience
        bench = Bench(
            self.substrate,
            self.capabilities,
            self.spec,
            sandboxes=self.sandboxes,
            lent=None if shared is None else shared.lend(),
            patience=patience,
        )
        try:
            reason = await _within(case.run(bench), self.deadline_s, f"it did not end within {self.deadline_s:g} s")
        except (asyncio.CancelledError, NotRun):
            await _within(bench.close(), grace_s, "")
            raise
        closing = await _within(_leave_nothing(bench), grace_s, f"its sandboxes did not close within {grace_s:g} s")
        reason = reason or (closing and f"closing failed: {closing}")
        return Verdict(case=case, outcome="broken" if reason else "kept", reason=reason or "", duration_s=loop.time() - begun)


async def _leave_nothing(bench: Bench) -> None:
    """Close, and look: cases may run side by side, so what one leaves behind is looked for under its own label."""
    await bench.close()
    left = await bench.substrate.list(bench.labels) if bench.capabilities.attach else ()
    expect(not left, f"{len(left)} of its sandboxes are still there")


async def _within(work: Coroutine[Any, Any, None], deadline_s: float, late: str) -> str | None:
    """Why `work` failed, or None. Work that does not even end when cancelled is left behind: the suite goes on."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=deadline_s)
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=GRACE_S)
            return late if task.done() else f"{late}, nor {GRACE_S:g} s after it was cancelled"
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task}, timeout=GRACE_S)
        raise
    if task.cancelled():
        return "it was cancelled, and nobody had asked for that"
    error = task.exception()
    if isinstance(error, NotRun):
        raise error
    return None if error is None else _one_line(error)


def _one_line(error: BaseException) -> str:
    text = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
    text = re.sub(r"\s+", " ", text).strip() or type(error).__name__
    return text if len(text) <= LONGEST_REASON else text[:LONGEST_REASON] + "..."
