"""The trials of one cell in one block: prepare, watch the host, let the lanes go, judge what came back."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from excise.clock import now_ns
from excise.errors import SpecError
from excise.meter import cold, identity
from excise.meter.answers import Sameness
from excise.meter.arrivals import intended_ns, until_ns
from excise.meter.host import Used, between, counters
from excise.meter.noise import noisy
from excise.meter.places import Place, Unpulled, place
from excise.meter.privacy import one_line, without_home
from excise.meter.records import Cell, Quiet, Trial
from excise.meter.trial import Conditions, Rollout, roll_out, watch
from excise.spec import Spec
from excise.substrate import Substrate
from excise.workloads.workload import Workload


class Bench(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan's names stand for here. `nulls`: the addresses beside whose actions null actions run."""

    substrates: Mapping[str, Substrate]
    workloads: Mapping[str, Workload]
    nulls: frozenset[str]
    image: str = "host"
    fresh: Unpulled | None = None

    async def image_of(self, cell: Cell) -> str:
        """What a cell's next rollouts are to be made from: all that begin at once from the same."""
        if cell.state != "registry":
            return self.image
        if self.fresh is None:
            raise SpecError("state=registry needs a registry, and there is none here")
        return await self.fresh.next()

    def spec(self, cell: Cell, image: str) -> Spec:
        """Set-up is paid in every rollout, unless the cell's state is that it was done before."""
        spec = self.workloads[cell.workload].spec(image)
        return spec if cell.state == "repo-warm" else spec.unshared()

    def place(self, cell: Cell, image: str) -> Place:
        return place(cell.reset, self.substrates[cell.address], self.spec(cell, image))


class Slot(NamedTuple):
    """One cell's place in a run."""

    block: int
    position: int
    cell: Cell
    warmup: bool = False
    rerun: bool = False
    control: bool = False


class Arrival(NamedTuple):
    """One rollout of a wave: when it was to begin, and how much later it did."""

    rollout: Rollout
    intended_ns: int = 0
    late_ns: int = 0


class Rounds:
    """Runs slots, one after the other, and keeps what lives longer than one: sandboxes that are reused, and who was seen."""

    def __init__(
        self,
        bench: Bench,
        run_id: str,
        *,
        quiet_s: float,
        same: Sameness,
        seed: int = 0,
        used: Iterable[str] = (),
        identify: bool = True,
    ) -> None:
        self._bench = bench
        self._run_id = run_id
        self._seed = seed
        self._quiet_s = quiet_s
        self._same = same
        self._host = identity.this_host() if identify else None
        self._lives = identity.Lives(frozenset(used))
        self._places: dict[tuple[Cell, int], Place] = {}
        self._warm: set[tuple[str, str]] | None = None
        """Whose files were read since the page cache was last dropped, by address and workload; None if it never was."""

    async def run(self, slot: Slot) -> list[Trial]:
        """The trials of one slot, a lane each."""
        cell = slot.cell
        image, absent = await self._image(cell)
        places = [self._place(cell, lane, image) for lane in range(cell.concurrency)]
        unprepared = [absent or await _prepared(one) for one in places]
        await self._temper(cell, places)
        quiet = await watch(self._quiet_s)
        before = counters()
        seen = await self._wave(slot, places, unprepared)
        # What lanes did apart overlapped with the others' rollouts, on the whole host's counter: it can be told of one alone.
        apart = seen[0].rollout.apart if len(seen) == 1 else Used(written_bytes=0)
        share = (between(before, counters()) - apart).share(cell.concurrency)
        faults = [await self._fault(cell, where, one.rollout) for where, one in zip(places, seen, strict=True)]
        return [self._trial(slot, lane, one, quiet=quiet, share=share, failure=faults[lane]) for lane, one in enumerate(seen)]

    def _trial(self, slot: Slot, lane: int, seen: Arrival, *, quiet: Quiet, share: Used, failure: str | None) -> Trial:
        one = seen.rollout
        return Trial(
            run=self._run_id,
            block=slot.block,
            position=slot.position,
            cell=slot.cell,
            lane=lane,
            warmup=slot.warmup,
            noisy=noisy(quiet),
            rerun=slot.rerun,
            control=slot.control,
            intended_ns=seen.intended_ns,
            late_ns=seen.late_ns,
            wall_ns=one.wall_ns,
            apart_ns=one.apart_ns,
            cpu_s=round(share.busy_s, 6),
            steal_s=round(share.steal_s, 6),
            written_bytes=share.written_bytes,
            identity=one.who.identity,
            quiet=quiet,
            failure=failure,
            spans=one.spans,
        )

    async def close(self) -> None:
        """Give back what was kept from trial to trial."""
        while self._places:
            _, one = self._places.popitem()
            await one.close()

    async def _image(self, cell: Cell) -> tuple[str, str | None]:
        """The image, and if there is none why: that is a failure of these trials, and of no other's."""
        try:
            return await self._bench.image_of(cell), None
        except Exception as error:  # noqa: BLE001 - see above
            return self._bench.image, without_home(one_line(error))

    def _place(self, cell: Cell, lane: int, image: str) -> Place:
        if cell.state == "registry":
            return self._bench.place(cell, image)  # from an image of its own each time, so nothing is kept
        if (cell, lane) not in self._places:
            self._places[cell, lane] = self._bench.place(cell, image)
        return self._places[cell, lane]

    async def _temper(self, cell: Cell, places: Sequence[Place]) -> None:
        """Drop the page cache before a cold cell; after that, warm each of the others once before its next trial."""
        if cell.state == "cold":
            await asyncio.to_thread(cold.drop_caches)
            self._warm = set()
        elif cell.state != "registry" and self._warm is not None and (cell.address, cell.workload) not in self._warm:
            self._warm.add((cell.address, cell.workload))
            warming = (self._roll_out(cell, one, Conditions(shell=cell.shell)) for one in places)
            await asyncio.gather(*warming)

    def _conditions(self, slot: Slot) -> Conditions:
        """Lanes run neither null actions nor, once warm, the question who they are: both would disturb the other lanes."""
        cell, alone = slot.cell, slot.cell.concurrency == 1
        return Conditions(
            nulls=alone and cell.address in self._bench.nulls,
            shell=cell.shell,
            think_s=cell.think_s,
            host=self._host if alone or slot.warmup else None,
        )

    async def _wave(self, slot: Slot, places: Sequence[Place], unprepared: Sequence[str | None]) -> list[Arrival]:
        """One rollout in each place, each begun when it is to begin and not when another has ended."""
        cell, conditions = slot.cell, self._conditions(slot)
        if len(places) == 1 and not cell.arrivals_per_s:
            return [Arrival(await self._roll_out(cell, places[0], conditions, unprepared[0]))]
        begun_ns = now_ns()

        async def lane(one: Place, why: str | None, at_ns: int) -> Arrival:
            late_ns = await until_ns(begun_ns + at_ns)
            return Arrival(await self._roll_out(cell, one, conditions, why), at_ns, late_ns)

        intended = intended_ns(cell, self._seed, slot.block)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(lane(*each)) for each in zip(places, unprepared, intended, strict=True)]
        return [task.result() for task in tasks]

    async def _roll_out(self, cell: Cell, where: Place, conditions: Conditions, why: str | None = None) -> Rollout:
        if why is not None:
            return Rollout(wall_ns=0, apart_ns=0, apart=Used(written_bytes=0), spans=(), failure=why)
        return await roll_out(where, self._bench.workloads[cell.workload], conditions)

    async def _fault(self, cell: Cell, where: Place, seen: Rollout) -> str | None:
        if seen.failure is not None:
            return seen.failure
        used = self._lives.fault(seen.who) if where.fresh else None
        return used or await self._same.fault(cell.workload, seen.answers)


async def _prepared(one: Place) -> str | None:
    """Why there is nowhere to roll out, or None."""
    try:
        await one.prepare()
    except Exception as error:  # noqa: BLE001 - it is this trial's failure, and nobody else's
        return without_home(one_line(error))
    return None
