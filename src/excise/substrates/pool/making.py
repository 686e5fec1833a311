"""How a pool has sandboxes made by its source: for a claim, in advance, once for many who want the same."""

import asyncio
import uuid
from collections.abc import Mapping

import msgspec

from excise.errors import CapacityError, CreateError, ExciseError
from excise.looking.records import About
from excise.looking.usage import usage
from excise.spec import Spec, Step
from excise.substrate import Handle, Snapshot
from excise.substrates.pool.settings import FLOOR_BYTES
from excise.substrates.pool.slots import Held, Slot, is_kept
from excise.substrates.pool.stock import Stock

ALIVE_S = 2.0
"""How long an idle sandbox may take to say that it lives. One that hangs costs this once, and not the whole deadline."""
MAKE_S = 1800.0
"""The longest that making one in advance may take: a source that hangs holds a place for so long, and no longer."""
UNDO_S = 2.0
"""How long who gives up waits for the source to have given up, too."""


class Making:
    """Every way to a new sandbox. The place is the caller's to have taken, and given back here if nothing comes of it."""

    def __init__(self, stock: Stock) -> None:
        self._stock = stock

    async def create(
        self, held: Held, start: Spec | Snapshot, *, deadline_s: float, lease_s: float, labels: Mapping[str, str]
    ) -> Handle:
        """By the source; who is cancelled meanwhile leaves nothing, and does not wait for a source that hangs."""
        stock = self._stock
        if stock.closed:  # who waited for a place gets it when the pool is closed: the source makes nothing any more
            stock.places.give(held.size_bytes)
            raise CreateError(f"the pool over {stock.source.address} was closed; connect to it again")
        making = stock.source.create(
            start,
            deadline_s=deadline_s,
            lease_s=lease_s,
            labels={**labels, **stock.labels},
            request_id=uuid.uuid4().hex,
        )
        task = stock.stopped_at_the_end(asyncio.ensure_future(making))
        try:
            held.handle = handle = await asyncio.shield(task)
            stock.sandboxes[handle.id] = held
        except asyncio.CancelledError:
            if task.cancelled():  # the pool, or its source, is being closed; nobody gave up
                stock.places.give(held.size_bytes)
                raise CreateError(f"{stock.source.address} was closed while it made a sandbox; connect to it again") from None
            task.cancel()
            undoing = stock.begin(self._undo(task, held))
            await asyncio.wait({undoing}, timeout=UNDO_S)
            raise
        except BaseException:
            stock.places.give(held.size_bytes)
            raise
        if stock.closed:  # the source did not hear that
            stock.drop(held)
            raise CreateError(f"the pool over {stock.source.address} was closed; connect to it again")
        return handle

    async def _undo(self, task: "asyncio.Future[Handle]", held: Held) -> None:
        try:
            await asyncio.wait({task})
            if not task.cancelled() and task.exception() is None:
                await task.result().close()
        finally:
            self._stock.places.give(held.size_bytes)

    # ---- in advance

    async def fill_one(self, slot: Slot, hands: asyncio.Semaphore) -> None:
        """One more of `slot`, when there is a hand and a place for it."""
        async with hands:
            self._stock.require_room(slot)
            held = await self._stock.place(slot.size_bytes)
            while held is None:
                held = await self._stock.place(slot.size_bytes, first=True)
            await self.fill(slot, held)

    async def fill(self, slot: Slot, held: Held, steps: tuple[Step, ...] | None = None) -> None:
        """One more of `slot` on the shelf, made as cheaply as can be, in the place that `held` has.

        `steps`: there is a sandbox in that place, which is of this state but for these.
        """
        stock = self._stock
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        try:
            async with asyncio.timeout(MAKE_S):
                handle = await (self._prepared(slot, held) if steps is None else self._grown(slot, held, steps))
                held.made_s, held.ahead = loop.time() - begun_s, True
                await self._keep_template(slot, handle)
                await self.weigh(slot, held, handle)
        except TimeoutError:
            self._lose(held)
            raise CreateError(f"{stock.source.address} made no sandbox in {MAKE_S:g} s") from None
        except BaseException:
            self._lose(held)
            raise
        stock.shelve(slot, held, slot.owner)

    def _lose(self, held: Held) -> None:
        """What was made so far is closed; `create` has given the place back if nothing was."""
        held.ahead = False
        if held.handle is not None:
            self._stock.drop(held)

    async def _prepared(self, slot: Slot, held: Held) -> Handle:
        stock, settings = self._stock, self._stock.settings
        loop = asyncio.get_running_loop()
        recipe = slot.recipe(stock.capabilities)
        start: Spec | Snapshot = recipe
        template = slot.template
        if template is not None:
            assert template.payload.snapshot is not None
            start = msgspec.structs.replace(template.payload.snapshot, spec=recipe)
        begun_s = loop.time()
        handle = await self.create(held, start, deadline_s=MAKE_S, lease_s=settings.lease_s, labels={})
        created_s = loop.time()
        await handle.ready()
        now_s = loop.time()
        if template is not None:
            stock.costs.note("template", slot.state.key, now_s - begun_s)
            return handle
        kept = is_kept(slot.state, stock.capabilities)
        stock.costs.note_made(slot.state, created_s - begun_s, now_s - begun_s, kept=kept)
        return handle

    async def _grown(self, slot: Slot, held: Held, steps: tuple[Step, ...]) -> Handle:
        stock, loop, handle = self._stock, asyncio.get_running_loop(), held.handle
        assert handle is not None
        async with asyncio.timeout(ALIVE_S):
            await handle.alive()
        await handle.adopt(slot.recipe(stock.capabilities).with_steps(steps))
        begun_s = loop.time()
        await handle.ready()
        stock.costs.note_steps(steps, loop.time() - begun_s)
        return handle

    async def _keep_template(self, slot: Slot, handle: Handle) -> None:
        """A snapshot of the state, which others are made of, and reset to. There is one, or none if there is no room for it."""
        stock = self._stock
        shared = slot.state.steps and not stock.capabilities.keeps_steps
        if stock.capabilities.snapshot is None or slot.template is not None or not (shared or stock.settings.reuse != "never"):
            return
        if not slot.templates or not all(step.share for step in slot.state.steps):
            return
        if not stock.places.take(FLOOR_BYTES, 0):
            return
        try:
            # With the lease of an idle sandbox. It cannot be renewed: once gc has taken it, another is made.
            snapshot = await handle.snapshot()
        except BaseException as error:
            stock.places.give(FLOOR_BYTES, 0)
            if not isinstance(error, ExciseError):
                raise
            slot.templates = False
            return
        size_bytes = max(FLOOR_BYTES, snapshot.size_bytes)
        held = Held(size_bytes=FLOOR_BYTES, snapshot=snapshot)
        if slot.template is not None or not stock.places.resize(size_bytes - FLOOR_BYTES):
            stock.drop(held, template=True)
            return
        held.size_bytes = size_bytes
        stock.shelve(slot, held, slot.owner, template=True)

    async def weigh(self, slot: Slot, held: Held, handle: Handle) -> None:
        """What one of these takes, as far as anybody can say."""
        stock = self._stock
        about = await usage(handle, About(id=handle.id, address=stock.source.address))
        template = 0 if slot.template is None else slot.template.bytes
        slot.size_bytes = max(FLOOR_BYTES, about.memory_bytes or 0, template)
        stock.require_room(slot)
        if not stock.places.resize(slot.size_bytes - held.size_bytes):
            raise CapacityError(
                f"a sandbox of this state takes {slot.size_bytes} bytes, which pool.memory has not left: raise it"
            )
        held.size_bytes = slot.size_bytes
