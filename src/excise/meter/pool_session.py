"""One cell in one block: a pool, or a substrate without one, lives, is asked, and is closed."""

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import msgspec

from excise.clock import now_ns
from excise.errors import SpecError
from excise.handles import finish
from excise.meter import cold
from excise.meter.arrivals import drawn_ns, until_ns
from excise.meter.booth import Booth, Figured, Fills, Settles, Task
from excise.meter.demand import asked, asked_before
from excise.meter.host import Counters, between, counters
from excise.meter.latency_states import all_of
from excise.meter.noise import noisy
from excise.meter.pool_records import Claim, PoolCell, PoolPlan, PoolTrial
from excise.meter.privacy import one_line, without_home
from excise.meter.records import Quiet
from excise.meter.trial import watch
from excise.sandbox import Sandbox
from excise.spec import Spec, Stage
from excise.substrate import Substrate
from excise.trace import Trace, recording

CLAIM = "claim"
"""The name of a pool's span around finding a sandbox; its kind says what was found."""
FLOORS = 20
"""How often the least that the kernel asks for a program is measured before each wave."""
FILLING = 4
"""How many idle sandboxes are made at once before a wave."""
WAIT_S = 120.0
"""How long a claim may wait."""
SETTLE_S = 120.0
"""How long a pool may take until it has nothing more to do by itself."""


class Slot(NamedTuple):
    """One cell's place in a run."""

    block: int
    position: int
    cell: PoolCell
    warmup: bool = False


async def run_session(booth: Booth, plan: PoolPlan, run_id: str, slot: Slot) -> PoolTrial:
    """The trial of one slot. Whatever goes wrong in it is its failure, and nobody else's."""
    session = _Session(booth, plan, slot)
    failure: str | None = None
    try:
        await session.run()
    except Exception as error:  # noqa: BLE001 - a fault of one cell must not cost the others their rows
        failure = without_home(one_line(error))
    return session.trial(run_id, failure)


class _Session:
    """What is known of one trial so far."""

    def __init__(self, booth: Booth, plan: PoolPlan, slot: Slot) -> None:
        self._booth = booth
        self._plan = plan
        self._slot = slot
        self._marks: list[Counters] = [counters()]
        self._quiet = Quiet(window_ns=0)
        self._claims: list[Claim] = []
        self._specs: dict[int, Spec] = {}
        self._together = _Together(_at_once(slot.cell))
        self._floor_ns: list[int] = []
        self._wall_ns = 0
        self._figures: Mapping[str, float] = {}

    async def run(self) -> None:
        cell = self._slot.cell
        substrate = self._booth.connect(cell.address)
        try:
            mixed, seed, block = self._booth.mixed, self._plan.seed, self._slot.block
            before = asked_before(cell, len(mixed.tasks), seed, block)
            measured = asked(cell, len(mixed.tasks), mixed.with_sibling, seed, block)
            await self._prepare(substrate, before, measured)
            if cell.state == "cold":
                await asyncio.to_thread(cold.drop_caches)
            self._quiet = await watch(self._plan.quiet_s)
            self._floor_ns = [self._booth.floor() for _ in range(FLOORS)] if self._booth.floor else []
            self._marks.append(counters())
            await self._wave(substrate, measured)
            self._marks.append(counters())
            self._figures = numbers(substrate.figures()) if isinstance(substrate, Figured) else {}
        finally:
            await finish(substrate.close())
        self._marks.append(counters())

    async def _prepare(self, substrate: Substrate, before: Sequence[int], measured: Sequence[int]) -> None:
        """Fill what is kept; who keeps nothing makes one sandbox, so that nothing is done for the first time in the wave."""
        cell = self._slot.cell
        if not (before or cell.depth):
            await _once(substrate, Spec(image=self._booth.image))
        if cell.kept or cell.state in ("repo-warm", "deps-warm"):
            for number in dict.fromkeys(measured):
                await _once(substrate, self._spec(number))
        if cell.depth == "sibling":
            await _fill(substrate, self._booth.spec(cell, self._booth.mixed.sibling(measured[0])), cell.idle, Stage.DEPS)
        elif cell.depth:
            await _fill(substrate, self._spec(measured[0]), cell.idle, Stage(cell.depth))
        waiting = iter(before)

        async def fill() -> None:
            for number in waiting:
                await _fill(substrate, self._spec(number), 1, Stage.DEPS)

        await all_of(fill() for _ in range(FILLING))
        await settle(substrate)

    def _spec(self, number: int) -> Spec:
        """One object for each task, as a trainer has it."""
        if number not in self._specs:
            self._specs[number] = self._booth.spec(self._slot.cell, self._booth.mixed.tasks[number])
        return self._specs[number]

    async def _wave(self, substrate: Substrate, tasks: Sequence[int]) -> None:
        cell = self._slot.cell
        intended = drawn_ns(cell.claims, cell.arrivals_per_s, self._plan.seed, self._slot.block)
        begun_ns = now_ns()
        async with asyncio.TaskGroup() as group:
            made = [
                group.create_task(self._claim(substrate, number, at_ns, begun_ns))
                for number, at_ns in zip(tasks, intended, strict=True)
            ]
        self._claims = [one.result() for one in made]
        await settle(substrate)
        self._wall_ns = now_ns() - begun_ns

    async def _claim(self, substrate: Substrate, number: int, at_ns: int, begun_ns: int) -> Claim:
        task = self._booth.mixed.tasks[number]
        box = Sandbox(substrate, self._spec(number), wait_s=WAIT_S)
        nonce = secrets.token_hex(8)
        trace = Trace()
        failure: str | None = None
        ready_ns = 0
        late_ns = await until_ns(begun_ns + at_ns)
        asked_ns = now_ns()
        with recording(trace):
            try:
                try:
                    await box.open()
                    ready_ns = now_ns() - asked_ns
                finally:
                    self._together.one()
                await self._together.all()
                failure = await _rolled_out(box, task, nonce)
            except Exception as error:  # noqa: BLE001 - it is this claim's failure, and nobody else's
                failure = without_home(one_line(error)).replace(nonce, "NONCE")
            finally:
                await finish(box.close())
        hit = next((one.kind for one in reversed(trace.spans) if one.name == CLAIM), "")
        return Claim(number, at_ns, late_ns, ready_ns, now_ns() - asked_ns, hit, failure)

    def trial(self, run_id: str, failure: str | None) -> PoolTrial:
        used = [between(before, after) for before, after in zip(self._marks, self._marks[1:], strict=False)]
        lead, wave, closing = (*used, *[between(self._marks[-1], self._marks[-1])] * (3 - len(used)))
        slot, quiet = self._slot, self._quiet
        return PoolTrial(
            run=run_id,
            block=slot.block,
            position=slot.position,
            cell=slot.cell,
            warmup=slot.warmup,
            noisy=noisy(quiet),
            quiet=quiet,
            claims=tuple(self._claims),
            floor_ns=tuple(self._floor_ns),
            wall_ns=self._wall_ns,
            cpu_s=round(wave.busy_s, 6),
            lead_cpu_s=round(lead.busy_s, 6),
            close_cpu_s=round(closing.busy_s, 6),
            steal_s=round(wave.steal_s, 6),
            written_bytes=wave.written_bytes,
            figures=self._figures,
            failure=failure,
        )


class _Together:
    """In a burst nobody's rollout begins before all were served: a model thinks first, and only claims are measured."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._served = asyncio.Event()
        if not count:
            self._served.set()

    def one(self) -> None:
        self._left -= 1
        if self._left <= 0:
            self._served.set()

    async def all(self) -> None:
        await self._served.wait()


def _at_once(cell: PoolCell) -> int:
    """How many claims are served before the first rollout begins; none where some must wait for others' places."""
    fits = cell.places is None or cell.claims <= cell.places
    return cell.claims if fits and not cell.arrivals_per_s else 0


async def _once(substrate: Substrate, spec: Spec) -> None:
    async with Sandbox(substrate, spec, wait_s=WAIT_S):
        pass


async def _rolled_out(box: Sandbox, task: Task, nonce: str) -> str | None:
    for turn in task.turns(nonce):
        reason = turn.expect.fault(await box.run(turn.action))
        if reason is not None:
            return reason.replace(nonce, "NONCE")
    return None


async def _fill(substrate: Substrate, spec: Spec, count: int, stage: Stage) -> None:
    if not isinstance(substrate, Fills):
        raise SpecError(f"{substrate.address} makes nothing in advance: idle sandboxes are for pools")
    await substrate.fill(spec, count, stage=stage)


async def settle(substrate: Substrate) -> None:
    """Until the substrate has done what it does by itself: the next to be measured must not pay for it."""
    if isinstance(substrate, Settles):
        async with asyncio.timeout(SETTLE_S):
            await substrate.settled()


def numbers(figures: object) -> dict[str, float]:
    """What of a record is a number, by name; of what it holds below, with a dot between."""
    found: dict[str, float] = {}

    def walk(prefix: str, value: object) -> None:
        if isinstance(value, bool):
            return
        if isinstance(value, int | float):
            found[prefix] = float(value)
        elif isinstance(value, dict):
            for name, below in cast("dict[str, object]", value).items():
                walk(f"{prefix}.{name}" if prefix else name, below)

    walk("", msgspec.to_builtins(figures))
    return found
