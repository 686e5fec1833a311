"""Each request's sandbox once: two who ask get one, who gives up leaves none, and a closed one's request is made anew."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from excise.errors import CreateError, SandboxLost, Unsupported
from excise.requests import EndsWithItsMaker, Requests
from excise.spec import Spec
from excise.substrates.fake import FakeSubstrate, virtual_time
from excise.substrates.fake.handle import FakeHandle


class Maker:
    """Makes sandboxes of a fake, as slowly as it is told to, and counts them."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self._substrate = FakeSubstrate()
        self._pause_s = pause_s
        self.made: list[FakeHandle] = []

    async def __call__(self) -> FakeHandle:
        request_id = f"r{len(self.made)}"
        await asyncio.sleep(self._pause_s)
        handle = await self._substrate.create(Spec(), deadline_s=60, lease_s=60, labels={}, request_id=request_id)
        self.made.append(handle)
        return handle


def run(body: Callable[[Requests[FakeHandle], Maker], Awaitable[None]], pause_s: float = 1.0) -> None:
    async def main() -> None:
        await body(Requests("fake"), Maker(pause_s))

    virtual_time.run(main())


async def is_closed(handle: FakeHandle) -> bool:
    try:
        await handle.ready()
    except SandboxLost:
        return True
    return False


def test_two_who_ask_at_once_get_one() -> None:
    async def body(requests: Requests[FakeHandle], make: Maker) -> None:
        one, two = await asyncio.gather(*(requests.once("r", 60, make) for _ in range(2)))
        assert one is two
        assert await requests.once("r", 60, make) is one
        assert len(make.made) == 1

    run(body)


def test_one_of_two_who_gives_up_does_not_take_it_from_the_other() -> None:
    async def body(requests: Requests[FakeHandle], make: Maker) -> None:
        stays, leaves = (asyncio.create_task(requests.once("r", 60, make)) for _ in range(2))
        await asyncio.sleep(0.5)
        leaves.cancel()
        assert not await is_closed(await stays)

    run(body)


def test_the_last_who_gives_up_leaves_none() -> None:
    async def body(requests: Requests[FakeHandle], make: Maker) -> None:
        task = asyncio.create_task(requests.once("r", 60, make))
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert make.made == []
        with pytest.raises(CreateError, match=r"made no sandbox in 0\.1 s"):
            await requests.once("r", 0.1, make)
        assert (await requests.once("r", 60, make)) in make.made

    run(body)


def test_a_making_that_failed_is_made_anew() -> None:
    async def fails() -> FakeHandle:
        raise CreateError("no")

    async def body(requests: Requests[FakeHandle], make: Maker) -> None:
        with pytest.raises(CreateError, match="no"):
            await requests.once("r", 60, fails)
        assert await requests.once("r", 60, make) is make.made[0]

    run(body)


def test_a_closed_ones_request_is_made_anew_and_a_later_one_is_not_forgotten_for_it() -> None:
    async def body(requests: Requests[FakeHandle], make: Maker) -> None:
        first = await requests.once("r", 60, make)
        requests.forget(first)
        second = await requests.once("r", 60, make)
        requests.forget(first)
        assert second is not first
        assert await requests.once("r", 60, make) is second

    run(body)


def test_close_closes_what_was_made_and_what_is_in_the_making() -> None:
    async def body(requests: Requests[FakeHandle], make: Maker) -> None:
        made = await requests.once("r", 60, make)
        making = asyncio.create_task(requests.once("s", 60, make))
        await asyncio.sleep(0.5)
        await requests.close()
        with pytest.raises(CreateError, match="was closed while it made this sandbox"):  # nobody cancelled who waits
            await making
        assert await is_closed(made)
        assert len(make.made) == 1

    run(body)


def test_what_ends_with_its_maker_is_not_found_by_others() -> None:
    substrate = EndsWithItsMaker[FakeHandle]()
    substrate.address = "here"
    with pytest.raises(Unsupported, match="end with the process that made them"):
        asyncio.run(substrate.attach("x"))
    with pytest.raises(Unsupported, match="end with the process that made them"):
        asyncio.run(substrate.list({}))
