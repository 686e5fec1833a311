"""`hosted:ADDRESS`: a server of our own at a distance, and nothing of it left."""

import asyncio
import os
import statistics
import time
from collections.abc import Callable

import pytest

from excise.action import Batch, Exec
from excise.api import connect, record
from excise.errors import SpecError, SubstrateError
from excise.sandbox import Sandbox


@pytest.fixture(autouse=True)
def here(runs_here: Callable[[str], None]) -> None:
    runs_here("namespace")


BY_PACKETS = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces of its own need root")


@pytest.mark.parametrize(("rtt_ms", "packets"), [(0, 0), (20, 0), pytest.param(20, 1, marks=BY_PACKETS)])
def test_an_action_takes_its_round_trip_and_a_batch_takes_one(rtt_ms: int, packets: int) -> None:
    async def main() -> None:
        address = f"hosted:namespace?hosted.rtt_ms={rtt_ms}&hosted.packets={packets}"
        async with connect(address) as substrate, Sandbox(substrate) as box:
            took: list[float] = []
            for _ in range(5):
                begun = time.monotonic()
                assert (await box.run(["true"])).ok
                took.append(time.monotonic() - begun)
            assert statistics.median(took) >= rtt_ms / 1000
            with record() as trace:
                seen = await box.run(Batch((Exec(("true",)),) * 10))
            assert seen.ok
            assert len(seen.parts) == 10
            [way] = [span for span in trace.spans if span.name == "wire"]
            assert way.duration_ns >= rtt_ms * 1e6

    asyncio.run(main())


def test_what_cannot_be_served_says_why() -> None:
    async def main() -> None:
        async with connect("hosted:docker?host=tcp://127.0.0.1:1") as substrate:
            with pytest.raises(SubstrateError, match=r"cannot be served: .*no Docker daemon answers"):
                await substrate.probe()

    asyncio.run(main())
    with pytest.raises(SpecError, match="a round trip takes"):
        asyncio.run(main_of("hosted:namespace?hosted.rtt_ms=-1"))


async def main_of(address: str) -> None:
    async with connect(address):
        pass
