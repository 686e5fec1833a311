"""Where the halves meet: connections that are always closed, and recordings of the user's own loop."""

import asyncio
from pathlib import Path

import pytest

import excise
from excise import api
from excise.errors import SpecError
from excise.sandbox import Sandbox
from excise.substrate import Substrate
from excise.substrates.fake import virtual_time


async def open_two(substrate: Substrate) -> None:
    for _ in range(2):
        await Sandbox(substrate).open()
    assert len(await substrate.list({})) == 2


def test_connect_closes_at_the_end_of_its_block() -> None:
    async def main() -> None:
        async with api.connect("fake") as substrate:
            await open_two(substrate)
        assert await substrate.list({}) == ()

    virtual_time.run(main())


def test_connect_closes_on_an_error_which_is_passed_on() -> None:
    seen: list[Substrate] = []

    async def fail() -> None:
        async with api.connect("fake") as substrate:
            seen.append(substrate)
            await open_two(substrate)
            raise ValueError("mine")

    async def main() -> None:
        with pytest.raises(ValueError, match="mine"):
            await fail()
        assert await seen[0].list({}) == ()

    virtual_time.run(main())


@pytest.mark.parametrize("after_s", [0.5, 1.5, 2.5], ids=["in its block", "at the first close", "at the second close"])
def test_connect_closes_all_of_it_when_cancelled(after_s: float) -> None:
    seen: list[Substrate] = []

    async def hold() -> None:
        async with api.connect("fake?close_s=1") as substrate:
            seen.append(substrate)
            await open_two(substrate)
            await asyncio.sleep(1)

    async def main() -> None:
        task = asyncio.create_task(hold())
        await asyncio.sleep(after_s)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await seen[0].list({}) == ()

    virtual_time.run(main())


def test_connect_refuses_a_wrong_address_before_anything_is_made() -> None:
    async def main() -> None:
        with pytest.raises(SpecError, match="no substrate is called 'dokcer'"):
            async with api.connect("dokcer"):
                pass

    virtual_time.run(main())


def test_a_recording_divides_a_rollouts_time() -> None:
    async def main() -> str:
        async with api.connect("fake?create_s=1&action_s=0.5&guest_s=2&close_s=1") as substrate:
            with api.record() as trace:
                async with Sandbox(substrate) as box:
                    await box.run("true")
                    await asyncio.sleep(3)  # the policy thinks
        # create 1, ready 2.5, action 0.5 + 2 of work, model 3, cleanup 1
        shares = trace.shares()
        assert (shares.model_s, shares.work_s, shares.tax_s) == pytest.approx((3.0, 2.0, 5.0))
        assert (shares.undivided_s, shares.sandboxes) == (0.0, 1)
        return str(trace)

    assert virtual_time.run(main()) == "model 30 %, work 20 %, tax 50 %"


def test_a_recording_ends_with_its_block() -> None:
    async def main() -> None:
        async with api.connect("fake") as substrate:
            with api.record() as trace:
                pass
            async with Sandbox(substrate):
                pass
        assert trace.spans == []
        assert str(trace).startswith("no sandbox was used")

    virtual_time.run(main())


def test_measure_inside_a_running_loop_names_what_to_await(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match=r"await excise\.api\.measure_async"):
            api.measure("fake", blocks=1, out=tmp_path / "results")

    asyncio.run(main())
    assert list(tmp_path.iterdir()) == []


def test_every_public_name_is_there() -> None:
    assert all(getattr(excise, name).__module__.startswith("excise.") for name in excise.__all__)
    assert dir(excise) == sorted(excise.__all__)


def test_an_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Snadbox'"):
        _ = excise.Snadbox  # pyright: ignore[reportAttributeAccessIssue] - that is the point
