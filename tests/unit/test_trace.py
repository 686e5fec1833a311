"""Spans: in the order they began, with how they ended, and only where somebody records."""

import asyncio
import contextvars
import sys

import pytest

from excise.clock import reading
from excise.trace import Span, Trace, begin_stage, recording, span, stage


class Ticking:
    """A clock that moves by one at every look."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        self.now_ns += 1
        return self.now_ns


def test_spans_stand_in_the_order_they_began_and_lie_inside_each_other() -> None:
    with reading(Ticking()), recording(Trace()) as trace, span("outer", "box"):
        with span("first", "box"):
            pass
        with span("second", "box", "exec"):
            pass
    assert [(s.name, s.start_ns, s.end_ns) for s in trace.spans] == [("outer", 1, 6), ("first", 2, 3), ("second", 4, 5)]
    assert [s.duration_ns for s in trace.spans] == [5, 1, 1]
    assert [s.kind for s in trace.spans] == ["", "", "exec"]
    assert {s.sandbox for s in trace.spans} == {"box"}


def test_a_span_that_is_under_way_has_no_outcome() -> None:
    with recording(Trace()) as trace, span("action", "box"):
        (under_way,) = trace.spans
        assert (under_way.outcome, under_way.end_ns) == ("", 0)
    assert under_way.outcome == "ok"


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError, KeyboardInterrupt])
def test_the_outcome_names_what_stopped_it(error: type[BaseException]) -> None:
    with recording(Trace()) as trace, pytest.raises(error), span("outer", "box"), span("inner", "box"):
        raise error
    assert [s.outcome for s in trace.spans] == [error.__name__] * 2
    assert all(s.end_ns for s in trace.spans)


def test_an_outcome_that_was_noted_stays() -> None:
    with recording(Trace()) as trace, span("action", "box") as noted:
        noted.outcome = "timed_out"
    assert trace.spans[0].outcome == "timed_out"


def test_without_a_recording_nothing_is_kept() -> None:
    with recording(Trace()) as trace:
        pass
    with span("action", "box") as unrecorded:
        assert isinstance(unrecorded, Span)
    assert trace.spans == []
    assert sys.getrefcount(unrecorded) == 2, "ours, and the call's own: nobody else holds it"


def test_the_inner_recording_has_the_span_and_the_outer_one_comes_back() -> None:
    with recording(Trace()) as outer:
        with recording(Trace()) as inner, span("a", "box"):
            pass
        with span("b", "box"):
            pass
    assert [s.name for s in inner.spans] == ["a"]
    assert [s.name for s in outer.spans] == ["b"]


def test_a_recording_ends_with_its_block_also_on_an_error() -> None:
    trace = Trace()
    with pytest.raises(ValueError, match="x"), recording(trace):
        raise ValueError("x")
    with span("later", "box"):
        pass
    assert trace.spans == []


def test_tasks_of_the_block_are_recorded_and_background_work_is_not() -> None:
    async def work(name: str) -> None:
        with span(name, "box"):
            await asyncio.sleep(0)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with recording(Trace()) as trace:
            mine = loop.create_task(work("mine"))
            background = loop.create_task(work("background"), context=contextvars.Context())
            await asyncio.gather(mine, background)
        assert [s.name for s in trace.spans] == ["mine"]

    asyncio.run(main())


def test_two_tasks_that_record_do_not_see_each_other() -> None:
    async def rollout(name: str) -> list[str]:
        with recording(Trace()) as trace:
            with span(name, "box"):
                await asyncio.sleep(0)
            return [s.name for s in trace.spans]

    async def main() -> None:
        assert await asyncio.gather(rollout("a"), rollout("b")) == [["a"], ["b"]]

    asyncio.run(main())


def test_who_works_in_a_stage_divides_it_and_no_time_is_lost() -> None:
    with reading(Ticking()), recording(Trace()) as trace, stage("create", "box"):
        begin_stage("ready")
        begin_stage("ready")  # It is that already.
        begin_stage("setup")
    assert [(s.name, s.sandbox, s.outcome) for s in trace.spans] == [
        ("create", "box", "ok"),
        ("ready", "box", "ok"),
        ("setup", "box", "ok"),
    ]
    assert [s.end_ns for s in trace.spans[:-1]] == [s.start_ns for s in trace.spans[1:]]


def test_a_failure_is_that_of_the_stage_it_came_in() -> None:
    def work() -> None:
        with stage("create", "box"):
            begin_stage("ready")
            _ = 1 / 0

    with recording(Trace()) as trace, pytest.raises(ZeroDivisionError):
        work()
    assert [(s.name, s.outcome) for s in trace.spans] == [("create", "ok"), ("ready", "ZeroDivisionError")]


def test_outside_of_a_stage_and_after_it_nothing_is_divided() -> None:
    begin_stage("setup")
    with recording(Trace()) as trace:
        with span("reset", "box"):
            begin_stage("setup")
        with stage("create", "box"):
            later = contextvars.copy_context()
        later.run(begin_stage, "setup")
    assert [s.name for s in trace.spans] == ["reset", "create"]


def test_a_sandbox_inside_of_anothers_stage_has_stages_of_its_own() -> None:
    with recording(Trace()) as trace, stage("create", "outer"):
        with stage("create", "inner"):
            begin_stage("setup")
        begin_stage("ready")
    assert [(s.name, s.sandbox) for s in trace.spans] == [
        ("create", "outer"),
        ("create", "inner"),
        ("setup", "inner"),
        ("ready", "outer"),
    ]
