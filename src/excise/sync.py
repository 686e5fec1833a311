"""The same, blocking: `from excise.sync import Sandbox`. Safe from many threads, which share one event loop.

Recording works across it: a call's spans land in the trace of the thread that made it. A thread started inside `with
excise.record()` has none unless it runs in a copy of that context: `pool.submit(contextvars.copy_context().run, rollout)`.
"""

import asyncio
import contextvars
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import cache
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, overload

from excise import api, sandbox
from excise.action import Action, Command, Event, FileInfo, Observation
from excise.spec import Spec
from excise.substrate import Capabilities, Change, Snapshot, Substrate
from excise.substrate import Connection as AsyncConnection
from excise.substrate import Process as AsyncProcess

T = TypeVar("T")

__all__ = ["Connection", "Process", "Sandbox", "connect", "probe"]


class _Background:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="excise", daemon=True).start()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there, in this thread's context, and wait.

        Whatever a signal raises here meanwhile (Ctrl-C, an alarm clock) cancels it and waits for it to clean up.
        """
        outcome: Future[T] = Future()
        tasks: list[asyncio.Task[T]] = []
        context = contextvars.copy_context()

        def start() -> None:
            tasks.append(self._loop.create_task(coroutine, context=context))
            tasks[0].add_done_callback(lambda done: _copy(done, outcome))

        def stop() -> None:
            if tasks:
                tasks[0].cancel()
            else:  # interrupted even before it could be handed over
                coroutine.close()
                outcome.set_exception(asyncio.CancelledError())

        try:
            self._loop.call_soon_threadsafe(start)
            return outcome.result()
        except BaseException:
            if not outcome.done():
                self._loop.call_soon_threadsafe(stop)
                outcome.exception()
            raise


def _copy(task: "asyncio.Task[T]", outcome: "Future[T]") -> None:
    if task.cancelled():
        outcome.set_exception(asyncio.CancelledError())
    elif (error := task.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(task.result())


@cache
def _background_of(pid: int) -> _Background:
    """One loop for a process; a forked child, which has no threads, gets one of its own."""
    del pid
    return _Background()


_starting = threading.Lock()


def _wait(coroutine: Coroutine[Any, Any, T]) -> T:
    # `cache` lets two threads that come first at once make two loops, and a substrate's connections belong to one.
    with _starting:
        background = _background_of(os.getpid())
    return background.call(coroutine)


@contextmanager
def _held(manager: AbstractAsyncContextManager[T]) -> Generator[T]:
    """An asynchronous context manager, entered and left from here."""

    entered = False

    async def enter() -> T:
        nonlocal entered
        value = await manager.__aenter__()
        entered = True  # noted here, in the loop's thread: an interruption of ours cannot come in between
        return value

    async def leave(error: BaseException | None) -> bool | None:
        return await manager.__aexit__(type(error) if error else None, error, error.__traceback__ if error else None)

    try:
        yield _wait(enter())
    except BaseException as error:
        if not entered or not _wait(leave(error)):
            raise
    else:
        _wait(leave(None))


@contextmanager
def connect(address: str) -> Generator[Substrate]:
    """The substrate at `address`, for the Sandboxes of any number of threads; closed at the end of the block."""
    with _held(api.connect(address)) as substrate:
        yield substrate


def probe(substrate: Substrate) -> Capabilities:
    """What `substrate` can do here."""
    return _wait(substrate.probe())


class Process:
    """A running command: `for event in process: ...`"""

    def __init__(self, process: AsyncProcess) -> None:
        self._process = process
        self._events = process.events()

    @property
    def id(self) -> str:
        return self._process.id

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        async def following() -> Event | None:
            return await anext(self._events, None)

        event = _wait(following())
        if event is None:
            raise StopIteration
        return event

    def wait(self) -> Observation:
        return _wait(self._process.wait())

    def write(self, data: bytes) -> None:
        _wait(self._process.write(data))

    def close_stdin(self) -> None:
        _wait(self._process.close_stdin())

    def resize(self, rows: int, columns: int) -> None:
        _wait(self._process.resize(rows, columns))

    def signal(self, number: int) -> None:
        _wait(self._process.signal(number))

    def kill(self) -> None:
        _wait(self._process.kill())


class Connection:
    """A byte stream to a port inside a sandbox."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    def read(self) -> bytes:
        """The next bytes; empty at the end."""
        return _wait(self._connection.read())

    def write(self, data: bytes) -> None:
        _wait(self._connection.write(data))

    def close(self) -> None:
        _wait(self._connection.close())


class Sandbox:
    """`with Sandbox("docker") as box: box.run("make")`; each method is its asynchronous namesake, waited for."""

    def __init__(
        self,
        substrate: Substrate | str,
        start: Spec | Snapshot | None = None,
        *,
        ttl_s: float = 3600.0,
        wait_s: float = 120.0,
        timeout_s: float = 600.0,
        labels: Mapping[str, str] | None = None,
        keep_on_failure: bool = False,
    ) -> None:
        self._box = sandbox.Sandbox(
            substrate,
            start,
            ttl_s=ttl_s,
            wait_s=wait_s,
            timeout_s=timeout_s,
            labels=labels,
            keep_on_failure=keep_on_failure,
        )

    @classmethod
    def _around(cls, box: sandbox.Sandbox) -> Self:
        made = cls.__new__(cls)
        made._box = box
        return made

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _wait(self._box.__aexit__(kind, error, at))

    def open(self) -> None:
        try:
            _wait(self._box.open())
        except BaseException:
            # An interruption may come when it is open already and nobody knows of it yet.
            self.close()
            raise

    def close(self) -> None:
        _wait(self._box.close())

    @property
    def id(self) -> str:
        return self._box.id

    def renew(self, ttl_s: float) -> None:
        _wait(self._box.renew(ttl_s))

    def run(
        self,
        action: str | Sequence[str] | Action,
        *,
        session: str | None = None,
        timeout_s: float | None = None,
        **common: Any,
    ) -> Observation:
        return _wait(self._box.run(action, session=session, timeout_s=timeout_s, **common))

    def start(
        self,
        action: str | Sequence[str] | Command,
        *,
        session: str | None = None,
        timeout_s: float | None = None,
        **common: Any,
    ) -> Process:
        return Process(_wait(self._box.start(action, session=session, timeout_s=timeout_s, **common)))

    def read(self, path: str) -> bytes:
        return _wait(self._box.read(path))

    def write(self, path: str, data: bytes | str, *, mode: int | None = None) -> None:
        _wait(self._box.write(path, data, mode=mode))

    def list(self, path: str) -> tuple[FileInfo, ...]:
        return _wait(self._box.list(path))

    def stat(self, path: str) -> FileInfo:
        return _wait(self._box.stat(path))

    def remove(self, path: str, *, recursive: bool = False) -> None:
        _wait(self._box.remove(path, recursive=recursive))

    def move(self, path: str, target: str) -> None:
        _wait(self._box.move(path, target))

    def make_dir(self, path: str) -> None:
        _wait(self._box.make_dir(path))

    def upload(self, path: str, tar: Iterable[bytes]) -> None:
        """Unpack a tar stream into the directory `path`; `tar` is read in pieces, in a thread of its own."""
        _wait(self._box.upload(path, _in_pieces(tar)))

    def download(self, path: str) -> Iterator[bytes]:
        pieces = self._box.download(path)

        async def following() -> bytes | None:
            return await anext(pieces, None)

        while (piece := _wait(following())) is not None:
            yield piece

    def connect(self, port: int) -> Connection:
        return Connection(_wait(self._box.connect(port)))

    def snapshot(self, *, keep_s: float | None = None) -> Snapshot:
        return _wait(self._box.snapshot(keep_s=keep_s))

    def reset(self, snapshot: Snapshot) -> None:
        _wait(self._box.reset(snapshot))

    @overload
    def diff(self, since: Snapshot | None = None, *, patch: Literal[False] = False, under: str = "/") -> tuple[Change, ...]: ...
    @overload
    def diff(self, since: Snapshot | None = None, *, patch: Literal[True], under: str = "/") -> str: ...
    def diff(self, since: Snapshot | None = None, *, patch: bool = False, under: str = "/") -> tuple[Change, ...] | str:
        if patch:
            return _wait(self._box.diff(since, patch=True, under=under))
        return _wait(self._box.diff(since, under=under))

    def pause(self) -> None:
        _wait(self._box.pause())

    def resume(self) -> None:
        _wait(self._box.resume())

    @contextmanager
    def fork(self, count: int) -> "Generator[tuple[Sandbox, ...]]":
        """`count` siblings of this state, closed together."""
        with _held(self._box.fork(count)) as children:
            yield tuple(Sandbox._around(child) for child in children)


async def _in_pieces(tar: Iterable[bytes]) -> AsyncIterator[bytes]:
    pieces = iter(tar)
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        yield piece
