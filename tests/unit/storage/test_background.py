"""Cancelled work in threads has stopped when the cancellation arrives, and a lock is held by one at a time."""

import asyncio
import threading
from pathlib import Path

import pytest

from excise.storage.background import Stop, Stopped, in_thread, locked, to_end


def test_a_cancelled_thread_is_told_and_waited_for() -> None:
    started, ended = threading.Event(), threading.Event()

    def work(stop: Stop) -> None:
        started.set()
        try:
            while True:
                stop.check()
        except Stopped:
            ended.set()
            raise

    async def main() -> None:
        task = asyncio.create_task(in_thread(work))
        await asyncio.to_thread(started.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()

    asyncio.run(main())


def test_to_end_finishes_before_the_cancellation_arrives() -> None:
    async def main() -> None:
        begun, done = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            begun.set()
            await asyncio.sleep(0.01)
            done.set()

        task = asyncio.create_task(to_end(work()))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done.is_set()

    asyncio.run(main())


def test_one_holds_a_lock_and_the_next_gets_it(tmp_path: Path) -> None:
    async def main() -> None:
        order: list[str] = []
        held, release = asyncio.Event(), asyncio.Event()

        async def first() -> None:
            async with locked(tmp_path / "lock"):
                held.set()
                await release.wait()
                order.append("first")

        async def second() -> None:
            await held.wait()
            asyncio.get_running_loop().call_later(0.02, release.set)
            async with locked(tmp_path / "lock"):
                order.append("second")

        await asyncio.gather(first(), second())
        assert order == ["first", "second"]

    asyncio.run(main())


def test_who_gives_up_waiting_does_not_keep_the_lock(tmp_path: Path) -> None:
    async def main() -> None:
        async with locked(tmp_path / "lock"):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02), locked(tmp_path / "lock"):
                    pytest.fail("two hold it")
        async with asyncio.timeout(20), locked(tmp_path / "lock"):
            pass

    asyncio.run(main())
