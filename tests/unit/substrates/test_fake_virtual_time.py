"""The virtual clock: hours cost nothing, order is kept, and a program that can never go on is told so."""

import asyncio

import pytest

from excise.clock import now_ns
from excise.substrates.fake import virtual_time
from excise.trace import Trace, recording, span


def test_sleeping_moves_the_clock_exactly() -> None:
    async def sleep() -> float:
        begun = asyncio.get_running_loop().time()
        await asyncio.sleep(1_000_000.25)
        return asyncio.get_running_loop().time() - begun

    assert virtual_time.run(sleep()) == 1_000_000.25


def test_timers_fire_in_the_order_of_their_times() -> None:
    async def race() -> list[int]:
        woken: list[int] = []

        async def nap(seconds: int) -> None:
            await asyncio.sleep(seconds)
            woken.append(seconds)

        await asyncio.gather(*(nap(seconds) for seconds in (300, 1, 20)))
        return woken

    assert virtual_time.run(race()) == [1, 20, 300]


def test_a_timeout_fires() -> None:
    async def wait() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert virtual_time.run(wait()) == 3600


def test_spans_read_the_virtual_clock() -> None:
    async def work() -> int:
        with recording(Trace()) as trace:
            with span("work", "s"):
                await asyncio.sleep(90)
            return trace.spans[0].duration_ns

    assert virtual_time.run(work()) == 90_000_000_000


def test_the_clock_outside_is_untouched() -> None:
    async def sleep() -> None:
        await asyncio.sleep(1_000_000)

    before = now_ns()
    virtual_time.run(sleep())
    assert now_ns() - before < 1_000_000_000_000_000


def test_waiting_for_what_cannot_come_is_an_error_that_names_who_waits() -> None:
    async def waits_for_ever() -> None:
        await asyncio.Event().wait()

    with pytest.raises(virtual_time.Standstill, match="waits_for_ever"):
        virtual_time.run(waits_for_ever())


def test_an_error_comes_through() -> None:
    async def fails() -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        virtual_time.run(fails())
