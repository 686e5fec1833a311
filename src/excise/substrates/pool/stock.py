"""All that a pool holds, and the few ways in which it comes and goes; every other part works on this."""

import asyncio
import contextvars
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from excise.errors import SpecError, SubstrateError
from excise.spec import Spec
from excise.substrate import Capabilities, Substrate
from excise.substrates.pool.costs import Costs
from excise.substrates.pool.figures import Counts
from excise.substrates.pool.owners import Owner, Owners
from excise.substrates.pool.places import Places
from excise.substrates.pool.policies.leaving import evict
from excise.substrates.pool.policies.view import Coming, Seen, View
from excise.substrates.pool.settings import Settings
from excise.substrates.pool.shelf import Entry, Shelf
from excise.substrates.pool.slots import Held, Slot, Want, Wants, owner_of, slot_name

END_S = 30.0
"""How long closing the pool waits for what its source does not end."""
LABEL = "excise-pool"
"""On every sandbox that a pool had made: whose, and so that no list takes an idle one for somebody's."""
T = TypeVar("T")
_TEMPLATE = "\0template"
_log = logging.getLogger("excise")


class Stock:
    """The shelf, the places, the slots and what things cost. Its changes are synchronous: none is ever seen half-done."""

    def __init__(self, source: Substrate, settings: Settings, name: str) -> None:
        self.source = source
        self.settings = settings
        self.labels = {LABEL: name}
        self.shelf: Shelf[Held] = Shelf("closest" if settings.match == "closest" else "exact")
        self.places = Places(settings.count, settings.memory_bytes)
        self.costs = Costs()
        self.counts = Counts()
        self.slots: dict[str, Slot] = {}
        self.sandboxes: dict[str, Held] = {}
        """Every one that we had made, by its name, until it is closed."""
        self.coming: list[Coming] = []
        self.closed = False
        self.loop: asyncio.AbstractEventLoop | None = None
        self._owners = Owners()
        self._capabilities: Capabilities | None = None
        self._wants: Wants | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stoppable: set[asyncio.Task[Any]] = set()
        self._claims: set[asyncio.Task[Any]] = set()
        self._numbers = 0

    # ---- what is wanted

    async def probe(self) -> Capabilities:
        if self._capabilities is None:
            self._capabilities = await self.source.probe()
            self._wants = Wants(self._owners, self._capabilities, self.source.address)
        return self._capabilities

    @property
    def capabilities(self) -> Capabilities:
        """Known from the first want on."""
        assert self._capabilities is not None
        return self._capabilities

    async def want(self, spec: Spec) -> Want:
        """SpecError if the source cannot honour it. Everything that is held belongs to one event loop: the first."""
        loop = asyncio.get_running_loop()
        if self.loop is not loop:
            if self.loop is not None:
                raise RuntimeError("this pool was opened in another event loop: connect to it again in this one")
            self.loop = loop
        if self._wants is None:
            await self.probe()
        assert self._wants is not None
        return self._wants.of(spec)

    def slot(self, want: Want, done: int, owner: str) -> Slot:
        """Of the state after the first `done` steps of `want`, as it would be made for `owner`."""
        whose = owner_of(want, done, owner)
        name = slot_name(want, done, whose)
        found = self.slots.get(name)
        if found is None:
            found = self.slots[name] = Slot(name, want, done, whose)
        elif done == len(want.state.steps):
            found.want = want
        return found

    def require_room(self, slot: Slot) -> None:
        """Refuse what no place is large enough for."""
        cap = self.places.memory_cap_bytes
        if cap is not None and slot.size_bytes > cap:
            raise SpecError(f"a sandbox of this state takes {slot.size_bytes} bytes, and pool.memory is {cap}: raise it")

    # ---- the shelf

    def shelve(self, slot: Slot, held: Held, owner: Owner | None, *, template: bool = False) -> None:
        """From now on it is idle, and whoever comes next may have it."""
        if self.closed:
            self.drop(held, template=template)
            return
        self._numbers += 1
        held.slot = slot = self.slots.setdefault(slot.name, slot)
        entry = Entry(
            id=f"{'template' if template else 'idle'}-{self._numbers}",
            state=slot.state,
            payload=held,
            fit=slot.want.fit,
            owner=owner,
            bytes=held.size_bytes,
            template=template,
            since_s=asyncio.get_running_loop().time(),
        )
        self.shelf.put(entry)
        if template:
            slot.template = entry
        else:
            slot.idle[entry.id] = entry
            self.places.nudge()

    def taken(self, entry: Entry[Held]) -> None:
        """It was taken off the shelf: it is idle no more."""
        slot = entry.payload.slot
        if slot is not None and not entry.template:
            del slot.idle[entry.id]

    def put_back(self, entry: Entry[Held]) -> None:
        """It was taken, and nothing was done with it: it is as idle as before."""
        slot = entry.payload.slot
        if self.closed or slot is None:
            self.drop(entry.payload)
            return
        self.shelf.put(entry)
        entry.payload.slot = slot = self.slots.setdefault(slot.name, slot)
        slot.idle[entry.id] = entry
        self.places.nudge()

    def remove(self, entry: Entry[Held]) -> None:
        """Take an idle one, or a template, off the shelf and close it."""
        if self.shelf.remove(entry.id) is None:
            return
        self.taken(entry)
        slot = entry.payload.slot
        if entry.template and slot is not None and slot.template is entry:
            slot.template = None
        self.drop(entry.payload, template=entry.template)

    def drop(self, held: Held, *, template: bool = False) -> None:
        """Close it beside everything; its place is free once it is closed."""
        if held.leaving:
            return
        if held.ahead:
            self.counts.unused += 1
            self.counts.unused_s += held.made_s
        self._leave(held, 0 if template else 1)
        self.begin(self._discarded(held) if template else self._closed(held))

    async def gone(self, held: Held) -> None:
        """Closed, once; its place is free whatever the source says to that."""
        if not held.leaving:
            self._leave(held)
            await self._closed(held)

    async def _closed(self, held: Held) -> None:
        begun_s = asyncio.get_running_loop().time()
        try:
            if held.handle is not None:
                await held.handle.close()
                self.costs.note("close", self.source.address, asyncio.get_running_loop().time() - begun_s)
                self.sandboxes.pop(held.handle.id, None)
        finally:
            self.places.left(held.size_bytes)

    def _leave(self, held: Held, count: int = 1) -> None:
        held.leaving = True
        self.places.leaving(held.size_bytes, count)

    async def _discarded(self, held: Held) -> None:
        assert held.snapshot is not None
        try:
            await self.source.discard(held.snapshot)
        finally:
            self.places.left(held.size_bytes, 0)

    # ---- making room

    async def place(self, size_bytes: int, *, first: bool = False) -> Held | None:
        """A place; the idle make room for it. None: something was shelved while it waited, which may be better."""
        if not self.places.take(size_bytes, first=first):
            given = self.places.ask(size_bytes, first=first)
            self.make_room()
            try:
                if not await given:
                    return None
            except asyncio.CancelledError:
                self.places.leave(given, size_bytes)
                raise
        return Held(size_bytes=size_bytes)

    def make_room(self) -> None:
        """Close what is idle and least worth, for those who wait and for what outgrew the cap."""
        need_count, _ = self.places.lacking()
        if need_count:
            self._evict(evict(self.view(idle=True, templates=False), need_count, 0))
        _, need_bytes = self.places.lacking()
        if need_bytes:
            self._evict(evict(self.view(idle=True), 0, need_bytes))

    def _evict(self, names: tuple[str, ...]) -> None:
        for name in names:
            slot = self.slots[name.removesuffix(_TEMPLATE)]
            entry = slot.template if name.endswith(_TEMPLATE) else next(iter(slot.idle.values()), None)
            if entry is not None:
                self.counts.evicted += 1
                self.remove(entry)

    def view(self, *, idle: bool = False, templates: bool = True) -> View:
        """What policies see: every state by its slot's name; `idle`: only those of which one is that nobody was promised."""
        now_s = asyncio.get_running_loop().time()
        seen = (slot for slot in self.slots.values() if not idle or len(slot.idle) > slot.spoken_for)
        states = {slot.name: self._seen(slot, now_s, slot.spoken_for if idle else 0) for slot in seen}
        kept = ((slot, slot.template) for slot in self.slots.values() if slot.template is not None and templates)
        states.update((slot.name + _TEMPLATE, self._seen_template(slot, entry, now_s)) for slot, entry in kept)
        return View(
            now_s=now_s,
            states=states,
            coming=tuple(self.coming),
            count=self.places.count,
            cap=self.places.count_cap,
            memory_bytes=self.places.memory_bytes,
            memory_cap_bytes=self.places.memory_cap_bytes,
            parallel=self.settings.parallel,
        )

    def _seen(self, slot: Slot, now_s: float, promised: int) -> Seen:
        fresh_s = self.costs.fresh_s(slot.state)
        refill_s = fresh_s if slot.template is None else self.costs.seconds("template", slot.state.key)
        return Seen(
            stage=slot.state.stage,
            idle=len(slot.idle) - promised,
            filling=slot.filling,
            rate_per_s=slot.rate_per_s(now_s),
            refill_s=refill_s,
            saved_s=fresh_s,
            bytes=slot.size_bytes,
            last_asked_s=slot.asked_s,
        )

    def _seen_template(self, slot: Slot, entry: Entry[Held], now_s: float) -> Seen:
        """Idle as a sandbox is, and worth what it spares the next one; nobody refills it."""
        saved_s = self.costs.fresh_s(slot.state) - self.costs.seconds("template", slot.state.key)
        return Seen(
            stage=slot.state.stage,
            idle=1,
            rate_per_s=slot.rate_per_s(now_s),
            saved_s=max(0.0, saved_s),
            bytes=entry.bytes,
            last_asked_s=slot.asked_s,
        )

    # ---- beside everything

    def begin(self, work: Coroutine[Any, Any, Any], *, stops: bool = False) -> asyncio.Task[Any]:
        """Do this in no rollout's trace. `stops`: the end of the pool need not wait for it."""
        task = asyncio.get_running_loop().create_task(work, context=contextvars.Context())
        self._tasks.add(task)
        if stops:
            self._stoppable.add(task)
        task.add_done_callback(self._done)
        return task

    def stopped_at_the_end(self, task: asyncio.Task[T]) -> asyncio.Task[T]:
        """What is done for a claim, which is told; the end of the pool ends it, too."""
        self._claims.add(task)
        task.add_done_callback(self._claims.discard)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        told = task in self._stoppable  # to whoever waits for what is made
        self._stoppable.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not told:
            _log.warning("a pool could not do what it does by itself: %s: %s", type(error).__name__, error)

    async def done(self) -> bool:
        """Wait until what is being done beside everything has ended; whether there was anything."""
        if not self._tasks:
            return False
        await asyncio.wait(tuple(self._tasks))
        return True

    async def close(self) -> None:
        """Everything idle is closed, what is being made is given up, and what is being closed is waited for."""
        self.closed = True
        for entry in self.shelf:
            self.remove(entry)
        for task in self._stoppable | self._claims:
            task.cancel()
        while left := self._tasks | self._claims:  # one that ends may begin another: a sandbox that was just made is closed
            done, _ = await asyncio.wait(left, timeout=END_S)
            if not done:
                raise SubstrateError(f"{self.source.address} did not end {len(left)} things in {END_S:g} s; look at it")
