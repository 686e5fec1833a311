"""A pool's address: its own options and its source's, one string that makes the same pool again."""

import asyncio

import pytest

import excise
from excise.api import connect
from excise.errors import SpecError
from excise.registry import make
from excise.substrates.pool import Pool


@pytest.mark.parametrize(
    "address",
    [
        "pool:fake",
        "pool:fake?create_s=0.5&pool.count=3",
        "pool:docker+guest?pool.memory=4294967296&pool.reuse=never&pool.match=exact",
        "pool:namespace?prove=1&pool.policy=fixed&pool.keep=2",
        "pool:local?pool.policy=schedule&pool.parallel=2&pool.idle_s=60&pool.percentile=0.9&pool.lease_s=30&pool.pressure=0",
    ],
)
def test_an_address_is_what_makes_the_same_pool(address: str) -> None:
    def said(text: str) -> tuple[str, set[str]]:
        head, _, options = text.partition("?")
        return head, {part for part in options.split("&") if part}

    pool = make(address)
    assert isinstance(pool, Pool)
    assert said(pool.address) == said(address)
    assert make(pool.address).address == pool.address


def test_sizes_have_units() -> None:
    assert make("pool:fake?pool.memory=3MiB").address == f"pool:fake?pool.memory={3 << 20}"


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("pool:fake?pool.size=3", "pool has no option 'pool.size'; its options: pool.count, pool.idle_s"),
        ("pool:fake?pool.count=many", "pool?pool.count=many"),
        ("pool:fake?pool.match=near", "pool?pool.match=near: it is one of closest, exact, none"),
        ("pool:fake?pool.policy=greedy", "pool?pool.policy=greedy: it is one of demand, fixed, schedule, none"),
        ("pool:fake?size=3", "fake has no option 'size'"),
        ("fake?pool.count=3", "fake has no option 'pool.count'"),
        ("pool:pool:fake", "write pool:fake"),
        ("pool:nothing", "no substrate is called 'nothing'"),
        ("pool:fake?pool.count=0", "less than one sandbox"),
    ],
)
def test_a_wrong_one_is_refused_in_one_sentence(address: str, said: str) -> None:
    with pytest.raises(SpecError) as refused:
        make(address)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_it_passes_on_its_sources_capabilities() -> None:
    async def probed(address: str) -> object:
        async with connect(address) as substrate:
            return await substrate.probe()

    assert asyncio.run(probed("pool:fake")) == asyncio.run(probed("fake"))


def test_it_is_a_public_name_and_takes_an_address() -> None:
    assert excise.Pool is Pool
    assert excise.Pool("fake", count=2).address == "pool:fake?pool.count=2"
