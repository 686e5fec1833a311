"""One clock for all spans, replaceable within a block."""

import asyncio
import contextvars
import time

import pytest

from excise.clock import now_ns, reading


def test_it_is_the_systems_monotonic_clock() -> None:
    before_ns = time.monotonic_ns()
    now = now_ns()
    assert before_ns <= now <= time.monotonic_ns()


def test_another_clock_is_read_within_the_block_only() -> None:
    with reading(lambda: 7):
        assert now_ns() == 7
        with reading(lambda: 8):
            assert now_ns() == 8
        assert now_ns() == 7
    assert now_ns() != 7


def test_the_clock_comes_back_after_an_error() -> None:
    with pytest.raises(ValueError, match="x"), reading(lambda: 7):
        raise ValueError("x")
    assert now_ns() != 7


def test_a_task_has_the_clock_of_where_it_was_started() -> None:
    async def look() -> int:
        return now_ns()

    async def main() -> tuple[int, int]:
        with reading(lambda: 7):
            inside = asyncio.create_task(look())
            apart = asyncio.get_running_loop().create_task(look(), context=contextvars.Context())
        return await inside, await apart

    inside, apart = asyncio.run(main())
    assert inside == 7
    assert apart != 7
