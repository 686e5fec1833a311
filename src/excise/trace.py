"""Spans: what happened when, on one clock. Recording is cheap and off unless somebody asked.

A span belongs to the trace of the context it runs in. Background work (refill, reset, deletion) runs in an empty
`contextvars.Context()` and so never lands in a rollout's trace.
"""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

import msgspec

from excise.clock import now_ns


class Span(msgspec.Struct):
    """One timed piece of a rollout. Durations measured inside a sandbox are attributes, never timestamps."""

    name: str
    sandbox: str
    start_ns: int
    end_ns: int = 0
    kind: str = ""
    """Of an action: exec, shell, session, read, ..."""
    guest_ns: int | None = None
    cpu_ns: int | None = None
    outcome: str = ""
    """"" while it runs; then "ok", or the name of the error or end that stopped it."""

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


class Trace:
    """The spans of one recording, in the order they began."""

    def __init__(self) -> None:
        self.spans: list[Span] = []


_current: ContextVar[Trace | None] = ContextVar("excise_trace", default=None)
_stage: ContextVar["stage | None"] = ContextVar("excise_stage", default=None)


@contextmanager
def recording(trace: Trace) -> Generator[Trace]:
    """Spans of this context, and of tasks started in it, go to `trace`."""
    token = _current.set(trace)
    try:
        yield trace
    finally:
        _current.reset(token)


class span:  # noqa: N801 - reads as a verb where it is used
    """`with span("create", sandbox) as s:`; a class, because a generator would cost twice as much."""

    __slots__ = ("_span",)

    def __init__(self, name: str, sandbox: str, kind: str = "") -> None:
        self._span = Span(name, sandbox, 0, kind=kind)

    def __enter__(self) -> Span:
        trace = _current.get()
        if trace is not None:
            trace.spans.append(self._span)
        self._span.start_ns = now_ns()
        return self._span

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        self._span.end_ns = now_ns()
        if not self._span.outcome:
            self._span.outcome = "ok" if error_type is None else error_type.__name__


def note_span(name: str, sandbox: str, start_ns: int, end_ns: int, *, kind: str = "") -> None:
    """A span that is over, for who learns of it from elsewhere: what went on was not our own doing."""
    trace = _current.get()
    if trace is not None:
        trace.spans.append(Span(name, sandbox, start_ns, end_ns, kind=kind, outcome="ok"))


SETUP = "setup"
"""The stage from a first command's answer to the start state: the spec's steps, its boot commands and ready probes."""


class stage(span):  # noqa: N801 - as above
    """A span that whoever works inside it can divide: `begin_stage` ends it there, and the next one goes on."""

    __slots__ = ("_outer",)

    def __enter__(self) -> Span:
        self._outer = _stage.set(self)
        return super().__enter__()

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        super().__exit__(error_type)
        _stage.reset(self._outer)

    def turn(self, name: str) -> None:
        """From now on it is called `name`; what was until now is a span of its own."""
        if self._span.end_ns or self._span.name == name:
            return  # A task that outlived it divides nothing any more.
        super().__exit__(None)
        ended, self._span = self._span, Span(name, self._span.sandbox, 0)
        super().__enter__()
        self._span.start_ns = ended.end_ns  # No time is lost between the two.


def begin_stage(name: str) -> None:
    """Divide the stage that runs in this context, if one does: a sandbox says so when its own set-up begins."""
    running = _stage.get()
    if running is not None:
        running.turn(name)
