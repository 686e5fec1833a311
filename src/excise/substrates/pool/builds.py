"""Identical misses build once: the first begins, all wait, and the one that comes of it and its template serve them."""

import asyncio
from contextlib import suppress

from excise.errors import CapacityError, CreateError, ExciseError
from excise.substrates.pool.making import Making
from excise.substrates.pool.shelf import Taken
from excise.substrates.pool.slots import Held, Slot
from excise.substrates.pool.stock import Stock


class Build:
    """One sandbox in the making that several wait for."""

    def __init__(self, slot: Slot, stock: Stock, making: Making, near: Taken[Held] | None) -> None:
        """`near`: an idle one to begin with, which is on no shelf any more."""
        self.placed = near is not None
        self._slot, self._stock, self._making, self._near = slot, stock, making, near
        self._waiting = 0
        self.task = stock.begin(self._run(), stops=True)
        self.task.add_done_callback(self._unbegun)

    def _unbegun(self, _: asyncio.Task[None]) -> None:
        """Given up before its first step."""
        if self._near is not None:
            self._stock.put_back(self._near.entry)

    async def _run(self) -> None:
        slot, making = self._slot, self._making
        near, self._near = self._near, None
        if near is not None:
            with suppress(ExciseError, TimeoutError):  # it is closed; what was in it may be to blame, so once more without
                await making.fill(slot, near.entry.payload, near.steps)
                return
        expected_bytes = slot.size_bytes
        try:
            await self._fill()
        except CapacityError:
            if slot.size_bytes <= expected_bytes:
                raise
            await self._fill()  # once more, in a place that is large enough: what it takes is known now

    async def _fill(self) -> None:
        slot, stock = self._slot, self._stock
        self.placed = False
        stock.require_room(slot)
        slot.unplaced = True
        try:
            held = await stock.place(slot.size_bytes)
            while held is None:
                held = await stock.place(slot.size_bytes, first=True)
        finally:
            slot.unplaced = False
        self.placed = True
        await self._making.fill(slot, held)

    async def wait(self) -> None:
        """Until it is on the shelf. Who is the last to give up ends it."""
        self._waiting += 1
        self._slot.promised += 1
        try:
            await asyncio.shield(self.task)
        except asyncio.CancelledError:
            if self.task.cancelled():
                raise CreateError("the pool was closed while it made this sandbox; connect to it again") from None
            if self._waiting == 1:
                self.task.cancel()
            raise
        except ExciseError as error:
            raise type(error)(*error.args) from None  # each who waited has one of its own
        finally:
            self._waiting -= 1
            self._slot.promised -= 1


class Builds:
    """Those that are under way, by the slot they are for."""

    def __init__(self, stock: Stock, making: Making) -> None:
        self._stock = stock
        self._making = making
        self._by_slot: dict[str, Build] = {}

    def __contains__(self, slot: Slot) -> bool:
        """One that everybody has given up is not for those who come now."""
        build = self._by_slot.get(slot.name)
        return build is not None and (self._stock.closed or not build.task.cancelling())

    def of(self, slot: Slot, near: Taken[Held] | None) -> Build:
        """The one that is under way, or a new one, which begins with `near`."""
        build = self._by_slot.get(slot.name) if slot in self else None
        if build is None:
            build = self._by_slot[slot.name] = Build(slot, self._stock, self._making, near)
            build.task.add_done_callback(lambda task: self._over(slot, task))
        return build

    def _over(self, slot: Slot, task: "asyncio.Task[None]") -> None:
        build = self._by_slot.get(slot.name)
        if build is not None and build.task is task:
            del self._by_slot[slot.name]
