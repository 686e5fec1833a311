"""Claims: the closest idle sandbox, alive and with the claim's own terms; or one that is made now."""

import asyncio
import math
from collections.abc import Callable, Mapping

import msgspec

from excise.adoption import ABILITY
from excise.errors import CapacityError, CreateError, ExciseError, SandboxLost, SpecError
from excise.spec import Spec, Step
from excise.substrate import Handle, Snapshot
from excise.substrates.pool.builds import Builds
from excise.substrates.pool.claim import Claim
from excise.substrates.pool.closeness import is_switch
from excise.substrates.pool.making import ALIVE_S, MAKE_S, Making
from excise.substrates.pool.owners import Owner
from excise.substrates.pool.shelf import Taken
from excise.substrates.pool.slots import Held, Slot, Want, is_kept
from excise.substrates.pool.state import digest
from excise.substrates.pool.stock import Stock
from excise.trace import span

A_MOMENT_S = 1e-6
SOME = 16
"""One adoption in so many is measured: what it costs changes slowly, and noting it is a good part of a claim's own time."""


class Claims:
    """How a claim comes to its sandbox."""

    def __init__(self, stock: Stock, making: Making) -> None:
        self._stock = stock
        self._making = making
        self._builds = Builds(stock, making)
        self._adoptions = 0

    async def claim(self, claim: Claim) -> Held:
        """A sandbox, whose `ready` has yet to be awaited; CapacityError or CreateError by the claim's deadline."""
        try:
            async with asyncio.timeout_at(claim.ends_s):
                while True:
                    held = await self._attempt(claim)
                    if held is not None:
                        held.ahead = False
                        return held
        except TimeoutError:
            raise self._late(claim) from None

    def _late(self, claim: Claim) -> ExciseError:
        places, address = self._stock.places, self._stock.source.address
        if not (claim.waits or (claim.build is not None and not claim.build.placed)):
            return CreateError(f"{address} made no sandbox for the pool in time; give it longer, or look at {address}")
        full = f"all {places.count_cap} places" if places.count >= places.count_cap else "the memory"
        return CapacityError(f"{full} of the pool stayed in use: raise pool.count or pool.memory, or give the claim longer")

    async def _attempt(self, claim: Claim) -> Held | None:
        """None: the idle one was no good, or one was made for several, so look again."""
        taken = self._taken(claim) if claim.shelf and self._stock.settings.match != "none" else None
        if taken is None:
            claim.missed = True
            return await self._made(claim)
        if self._is_for_all(claim, taken):
            return await self._built(claim, taken)
        claim.steps = taken.steps
        if taken.entry.template:
            return await self._of_template(claim, taken)
        return await self._adopted(claim, taken)

    def _is_for_all(self, claim: Claim, taken: Taken[Held]) -> bool:
        """Whether what is left to do to this one is done for all who want the same, and not by each of them."""
        want = claim.want
        fresh = taken.entry.owner is None and not taken.entry.template
        return bool(taken.steps) and want.shared and fresh and not claim.built and all(step.share for step in taken.steps)

    async def _built(self, claim: Claim, taken: Taken[Held]) -> None:
        slot = self._stock.slot(claim.want, len(claim.want.state.steps), claim.owner.name)
        if slot in self._builds:
            self._stock.put_back(taken.entry)
            claim.missed = True
            await self._build(claim, slot)
            return
        self._found(claim, taken)
        claim.missed = True  # whatever it takes off the shelf then, this is what it found
        await self._build(claim, slot, taken)

    def _taken(self, claim: Claim) -> Taken[Held] | None:
        stock, want = self._stock, claim.want
        same = stock.shelf.take_same(want.state, want.fit, claim.owner)
        if same is not None:
            stock.taken(same)
            return Taken(same, (), 0.0, want.depth)
        # Where there is no place for a new one, any idle one is better than waiting; and what was made for it is its own.
        full = stock.places.count >= stock.places.count_cap
        fresh_s = math.inf if full or claim.built else self._fresh_s(want)
        taken = stock.shelf.take_closest(want.state, want.fit, claim.owner, stock.costs, fresh_s)
        if taken is not None:
            stock.taken(taken.entry)
        return taken

    def _fresh_s(self, want: Want) -> float:
        """What a create is expected to take; never less than an adoption.

        Else one slow adoption would keep idle sandboxes from being tried, and measured, ever again.
        """
        costs = self._stock.costs
        return max(costs.fresh_s(want.state), costs.seconds("adopt", want.state.image) + A_MOMENT_S)

    def _found(self, claim: Claim, taken: Taken[Held]) -> None:
        claim.waits, claim.adopted = False, True
        if not claim.missed:
            claim.kind = "template" if taken.entry.template else taken.depth
            claim.found = len(taken.entry.state.steps)

    # ---- an idle one

    async def _adopted(self, claim: Claim, taken: Taken[Held]) -> Held | None:
        stock, held = self._stock, taken.entry.payload
        handle = held.handle
        assert handle is not None
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        try:
            async with asyncio.timeout(ALIVE_S):
                await handle.alive()
        except asyncio.CancelledError:
            stock.put_back(taken.entry)
            raise
        except Exception:  # noqa: BLE001 - whatever it says, and if it says nothing: it does not live
            return self._dead(held)
        try:
            await handle.adopt(_terms(claim.want, taken.steps, claim.labels))
            if held.renewing is not None:
                await asyncio.wait({held.renewing})
            await handle.renew(claim.lease_s)
        except SpecError:  # the source will say it better of one that it makes
            claim.shelf = False
            stock.drop(held)
            return None
        except ExciseError:
            return self._dead(held)
        except BaseException:
            stock.drop(held)
            raise
        self._adoptions += 1
        if self._adoptions % SOME == 1:
            stock.costs.note("adopt", claim.want.state.image, loop.time() - begun_s)
        self._found(claim, taken)
        return held

    def _dead(self, held: Held) -> None:
        self._stock.counts.dead += 1
        held.ahead = False
        self._stock.drop(held)

    # ---- one of a template

    async def _of_template(self, claim: Claim, taken: Taken[Held]) -> Held | None:
        stock, want = self._stock, claim.want
        snapshot = taken.entry.payload.snapshot
        assert snapshot is not None
        held = await self._place(claim, taken.entry.payload.slot)
        if held is None:
            return None
        spec = want.spec
        if taken.steps:
            done = spec.with_steps(taken.entry.state.steps)
            spec = msgspec.structs.replace(done, boot=(), ready=(), needs=spec.needs | {ABILITY})
        begun_s = asyncio.get_running_loop().time()
        try:
            handle = await self._create(claim, held, msgspec.structs.replace(snapshot, spec=spec))
            if taken.steps:
                await self._go_on(held, handle, _terms(want, taken.steps, claim.labels))
        except ExciseError:  # it may have been collected: it is not used again, and the claim goes on without it
            stock.remove(taken.entry)
            return None
        if not (spec.boot or spec.ready or taken.steps):
            stock.costs.note("template", taken.entry.state.key, asyncio.get_running_loop().time() - begun_s)
        self._found(claim, taken)
        return held

    async def _go_on(self, held: Held, handle: Handle, spec: Spec) -> None:
        """From the template's state with the steps that are left."""
        try:
            await handle.ready()
            await handle.adopt(spec)
        except BaseException:
            self._stock.drop(held)
            raise

    # ---- to its start state

    async def make_ready(self, claim: Claim, held: Held, is_closed: Callable[[], bool]) -> Held:
        """Finish what is missing; in another sandbox, made for it, if that fails in one that stood on the shelf."""
        assert held.handle is not None
        loop, begun_s = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        try:
            await held.handle.ready()
        except (CreateError, SandboxLost):
            if not claim.adopted or is_closed():
                raise
            tried = claim.steps
            held = await self._again(claim, held)
            for step in filter(is_switch, tried):  # one that fails is as dear as what followed
                self._stock.costs.note("switch", digest(step), loop.time() - begun_s)
            return held
        self._note(claim, loop.time() - begun_s)
        return held

    async def _again(self, claim: Claim, held: Held) -> Held:
        """What was there before may be to blame: once more, from the beginning. The trace says so: it is another claim."""
        self._stock.drop(held)
        claim.shelf, claim.built, claim.missed, claim.found = False, True, True, -1
        loop = asyncio.get_running_loop()
        claim.ends_s = loop.time() + MAKE_S  # whoever waits for `ready` has a deadline of its own
        with span("claim", claim.request_id) as recorded:
            held = await self.claim(claim)
            recorded.kind = claim.kind
        assert held.handle is not None
        begun_s = loop.time()
        try:
            await held.handle.ready()
        except BaseException:  # nobody else knows of it yet
            self._stock.drop(held)
            raise
        self._note(claim, loop.time() - begun_s)
        return held

    def _note(self, claim: Claim, ready_s: float) -> None:
        """What that cost, where it can be told from what the claim's own commands took."""
        spec, state, stock = claim.want.spec, claim.want.state, self._stock
        if spec.boot or spec.ready:
            return
        if claim.made_s is not None:
            kept = is_kept(state, stock.capabilities)
            stock.costs.note_made(state, claim.made_s, claim.made_s + ready_s, kept=kept)
        elif claim.steps:
            stock.costs.note_steps(claim.steps, ready_s)

    # ---- a new one

    async def of_snapshot(self, snapshot: Snapshot, ends_s: float, lease_s: float, labels: Mapping[str, str]) -> Held:
        """Of a snapshot that somebody took, in a place of its own."""
        want = await self._stock.want(snapshot.spec)
        claim = Claim(want=want, owner=Owner(), lease_s=lease_s, labels=labels, ends_s=ends_s)
        slot = self._stock.slot(want, 0, "")
        try:
            async with asyncio.timeout_at(ends_s):
                held = await self._place(claim, slot)
                while held is None:
                    held = await self._place(claim, slot)
                await self._create(claim, held, snapshot)
        except TimeoutError:
            raise self._late(claim) from None
        return held

    async def _made(self, claim: Claim) -> Held | None:
        stock, want = self._stock, claim.want
        slot = stock.slot(want, len(want.state.steps), claim.owner.name)
        if claim.waits:  # it was shown what is idle now, and cannot use it: others wait, too
            stock.make_room()
        if want.shared and not claim.built and slot.template is None and stock.settings.match != "none":
            await self._build(claim, slot)
            return None
        held = await self._place(claim, slot)
        if held is None:
            return None
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        claim.adopted, claim.steps, claim.kind = False, want.state.steps, "miss"
        await self._create(claim, held, want.spec)
        claim.made_s = loop.time() - begun_s
        return held

    async def _place(self, claim: Claim, slot: Slot | None) -> Held | None:
        assert slot is not None
        self._stock.require_room(slot)
        first, claim.waits = claim.waits, True
        held = await self._stock.place(slot.size_bytes, first=first)
        if held is not None:
            claim.waits = False
        return held

    async def _create(self, claim: Claim, held: Held, start: Spec | Snapshot) -> Handle:
        left_s = claim.ends_s - asyncio.get_running_loop().time()
        return await self._making.create(held, start, deadline_s=left_s, lease_s=claim.lease_s, labels=claim.labels)

    async def _build(self, claim: Claim, slot: Slot, near: Taken[Held] | None = None) -> None:
        """Identical misses build once: whoever comes first begins, all wait, and then they look at the shelf again."""
        claim.built = True
        claim.build = self._builds.of(slot, near)
        await claim.build.wait()
        claim.build = None


def _terms(want: Want, steps: tuple[Step, ...], labels: Mapping[str, str]) -> Spec:
    """What a sandbox takes on that holds the wanted state but for these steps."""
    spec = want.spec.with_steps(steps) if steps else want.base
    return spec if spec.labels == labels else msgspec.structs.replace(spec, labels=labels)
