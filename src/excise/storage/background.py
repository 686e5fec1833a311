"""Work that would stall the loop, done beside it; cancelling it stops it and waits until it has stopped."""

import asyncio
import fcntl
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class Stopped(Exception):  # noqa: N818 - not an error: the answer to a cancellation, seen by nobody else
    """Work in a thread gave up because its caller was cancelled."""


class Stop:
    """What a cancelled caller sets, and long work in a thread asks now and then."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def check(self) -> None:
        if self._event.is_set():
            raise Stopped


async def in_thread(work: Callable[[Stop], T]) -> T:
    """Run `work` in a thread. When this returns or raises, cancellation included, the thread is done with it."""
    stop = Stop()
    task = asyncio.ensure_future(asyncio.to_thread(work, stop))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        stop.set()
        await _settled(task)
        raise


async def to_end(work: Coroutine[Any, Any, T]) -> T:
    """Carry `work` to its end even if the caller is cancelled meanwhile; the cancellation comes after it."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await _settled(task)
        raise


async def _settled(task: "asyncio.Future[Any]") -> None:
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # asked for, so that asyncio does not report it as forgotten


@asynccontextmanager
async def locked(path: Path) -> AsyncGenerator[None]:
    """Hold the file lock `path` among tasks and processes. The file stays: removing it would let two hold "it"."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        descriptor = await _wait_for(descriptor)
    try:
        yield
    finally:
        os.close(descriptor)


async def _wait_for(descriptor: int) -> int:
    """Wait in a thread of its own, which nobody joins: a flock cannot be interrupted, and exit must not hang on it."""
    loop = asyncio.get_running_loop()
    got: asyncio.Future[int] = loop.create_future()

    def hand_over() -> None:
        if got.done():
            os.close(descriptor)
        else:
            got.set_result(descriptor)

    def wait() -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            loop.call_soon_threadsafe(hand_over)
        except RuntimeError:  # the loop is closed: whoever waited is gone
            os.close(descriptor)

    threading.Thread(target=wait, name="excise-lock", daemon=True).start()
    try:
        return await got
    except asyncio.CancelledError:
        if got.done() and not got.cancelled():  # handed over and cancelled in the same turn of the loop
            os.close(descriptor)
        raise
