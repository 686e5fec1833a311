"""Pools over the pretend substrate, on its virtual clock; what must hold of one at any moment; a source with faults."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from excise.action import Shell
from excise.errors import SubstrateError
from excise.spec import Spec, Stage, Step
from excise.substrate import Handle, Snapshot
from excise.substrates.fake import FakeSubstrate, virtual_time
from excise.substrates.fake.handle import FakeHandle
from excise.substrates.pool import Pool
from excise.substrates.pool.handle import PoolHandle

CLONE_S, INSTALL_S, SWITCH_S = 5.0, 30.0, 2.0


def clone(commit: str) -> Step:
    return Step(
        "repo",
        (Shell(f"sleep {CLONE_S}; echo {commit} > commit"),),
        Stage.REPO,
        of="repository",
        switch=(Shell(f"sleep {SWITCH_S}; echo {commit} > commit"),),
    )


INSTALL = Step("deps", (Shell(f"sleep {INSTALL_S}; echo installed > deps"),), Stage.DEPS, lock="lock")


def spec(commit: str = "one", **fields: Any) -> Spec:
    """A repository at a commit, and what it depends on."""
    return Spec(steps=(clone(commit), INSTALL), **fields)


def source(**options: Any) -> FakeSubstrate:
    return FakeSubstrate(**{"create_s": 1.0, "close_s": 0.5, **options})


async def claim(pool: Pool, wanted: Spec, *, deadline_s: float = 600.0, **labels: str) -> PoolHandle:
    handle = await pool.create(wanted, deadline_s=deadline_s, lease_s=3600.0, labels=labels, request_id=uuid.uuid4().hex)
    await handle.ready()
    return handle


async def read(handle: Handle, path: str) -> str:
    return (await handle.run(Shell(f"cat {path}"))).stdout.decode().strip()


def on_pool(body: Callable[[Pool, FakeSubstrate], Awaitable[None]], **options: Any) -> None:
    """Run `body` with a pool over a fake, on virtual time; at the end nothing may be left of either."""

    async def run() -> None:
        fake = options.pop("source", None) or source()
        pool = Pool(fake, **{"pressure": False, **options})
        try:
            await body(pool, getattr(fake, "fake", fake))
            check_invariants(pool)
        finally:
            await pool.close()
        assert await getattr(fake, "fake", fake).list({}) == ()
        assert await getattr(fake, "fake", fake).snapshots() == ()
        assert pool.figures().count == 0
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, left

    virtual_time.run(run())


def check_invariants(pool: Pool) -> None:
    """What holds of a pool between any two steps of the loop."""
    stock = pool._stock
    places = stock.places
    assert places.count <= places.count_cap
    assert places.memory_cap_bytes is None or places.memory_bytes <= places.memory_cap_bytes
    idle = [entry for entry in stock.shelf if not entry.template]
    counted = [entry for slot in stock.slots.values() for entry in slot.idle.values()]
    assert {id(entry) for entry in idle} == {id(entry) for entry in counted}
    assert len(idle) == len(counted)
    assert all(entry.payload.slot is not None and entry.id in entry.payload.slot.idle for entry in idle)
    names = [entry.payload.handle.id for entry in idle if entry.payload.handle is not None]
    assert len(set(names)) == len(names) == len(idle)
    assert not set(names) & set(pool._claimed), "a sandbox is idle and claimed"
    assert len(idle) + len(pool._claimed) <= places.count


def idle_of(pool: Pool) -> list[FakeHandle]:
    """The source's handles of what is idle."""
    found = [entry.payload.handle for entry in pool._stock.shelf if entry.payload.handle is not None]
    return [handle for handle in found if isinstance(handle, FakeHandle)]


class Faulty:
    """A fake that can be told to die or to hang: a source as a pool may meet it."""

    def __init__(self, fake: FakeSubstrate) -> None:
        self.fake = fake
        self.address = fake.address
        self.dead = False
        self.hangs = False
        self.creates = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fake, name)

    async def create(
        self, start: Spec | Snapshot, *, deadline_s: float, lease_s: float, labels: Mapping[str, str], request_id: str
    ) -> Handle:
        self.creates += 1
        if self.dead:
            raise SubstrateError("the pretend daemon does not answer; start it")
        if self.hangs:
            await asyncio.Event().wait()
        return await self.fake.create(start, deadline_s=deadline_s, lease_s=lease_s, labels=labels, request_id=request_id)
