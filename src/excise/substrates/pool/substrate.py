"""`pool:ADDRESS` as a Substrate."""

import asyncio
import contextvars
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Self

import msgspec

from excise.address import parse
from excise.errors import CreateError, SandboxLost, SpecError
from excise.handles import finish
from excise.registry import make
from excise.spec import Spec, Stage
from excise.substrate import Capabilities, Handle, Listed, Snapshot, Substrate
from excise.substrates.pool.claim import Claim
from excise.substrates.pool.claims import Claims
from excise.substrates.pool.figures import Figures
from excise.substrates.pool.handle import PoolHandle
from excise.substrates.pool.making import Making
from excise.substrates.pool.owners import LABEL as OWNER
from excise.substrates.pool.owners import Owner
from excise.substrates.pool.policies.view import Coming
from excise.substrates.pool.pressure import host_pressure, no_pressure
from excise.substrates.pool.refill import Refill
from excise.substrates.pool.reuse import Reuse
from excise.substrates.pool.seen import figures_of
from excise.substrates.pool.settings import Match, Policy, Reused, Settings, size_bytes
from excise.substrates.pool.stock import END_S, LABEL, Stock
from excise.trace import span

MARGIN_S = 0.1


class Pool:
    """Warm sandboxes of `source`, at every depth of preparation; a claim gets the one that needs the least seconds.

    Its options, `pool.KEY=VALUE` in an address:

    count       the most sandboxes at once: idle, in the making and claimed (64)
    memory      the most bytes that these and the templates take, as 4GiB; a sandbox counts 1 MiB at least (no cap)
    match       closest: whatever leads to the wanted state; exact: that state alone; none: every claim is a create (closest)
    policy      what is made in advance. demand: what is asked for while one is made; fixed: `keep` of every state that was
                asked for; schedule: what `expect` said is coming; none: nothing, but what comes back is kept (demand)
    percentile  how many of the claims demand is to suffice for (0.95)
    keep        for policy=fixed: how many idle sandboxes of each state (1)
    reuse       after a rollout. auto: reset and shelve, or close, whichever costs less; reset: whenever it can be; never (auto)
    parallel    how many sandboxes are made in advance at a time (4)
    idle_s      how long a state is kept that nobody asks for (600)
    lease_s     of idle sandboxes: gc takes them this long after our death (300)
    pressure    1: nothing is made in advance while tasks of this host wait for memory, io or cpu; 0: whatever they do (1)
    """

    def __init__(
        self,
        source: Substrate | str,
        *,
        count: int = 64,
        memory: int | str | None = None,
        match: Match = "closest",
        policy: Policy = "demand",
        percentile: float = 0.95,
        keep: int | None = None,
        reuse: Reused = "auto",
        parallel: int = 4,
        idle_s: float = 600.0,
        lease_s: float = 300.0,
        pressure: bool = True,
    ) -> None:
        """Nothing happens until something is claimed, filled or expected. The source is the pool's: it is closed with it."""
        settings = Settings(
            count=count,
            memory_bytes=size_bytes(memory),
            match=match,
            reuse=reuse,
            policy=policy,
            keep=keep if keep is not None else int(policy == "fixed"),
            parallel=parallel,
            idle_s=idle_s,
            percentile=percentile,
            lease_s=lease_s,
        )
        settings.check()
        self._source = make(source) if isinstance(source, str) else source
        self.address = _address(self._source.address, settings, pressure=pressure)
        self._stock = Stock(self._source, settings, uuid.uuid4().hex)
        self._making = Making(self._stock)
        self._claims = Claims(self._stock, self._making)
        self._reuse = Reuse(self._stock, self._making)
        self._refill = Refill(self._stock, self._making, host_pressure if pressure else no_pressure)
        self._claimed: dict[str, PoolHandle] = {}
        self._returning: set[PoolHandle] = set()
        self._requests: dict[str, PoolHandle] = {}
        self._asking: dict[str, asyncio.Event] = {}

    async def probe(self) -> Capabilities:
        return await self._stock.probe()

    # ---- claims

    async def create(
        self, start: Spec | Snapshot, *, deadline_s: float, lease_s: float, labels: Mapping[str, str], request_id: str
    ) -> PoolHandle:
        if self._stock.closed:
            raise CreateError(f"{self.address} is closed; connect to it again")
        # A little early, so that what we say of it reaches who waits by the same clock.
        ends_s = asyncio.get_running_loop().time() + deadline_s - min(MARGIN_S, deadline_s / 20)
        if request_id in self._asking:
            await self._asked(request_id, ends_s)
        known = self._requests.get(request_id)
        if known is not None:
            if known.labels.get(OWNER) != labels.get(OWNER):
                raise CreateError("this request_id is another owner's: each sandbox is asked for with one of its own")
            return known
        asking = self._asking[request_id] = asyncio.Event()
        try:
            with span("claim", request_id) as recorded:
                if isinstance(start, Spec):
                    handle = await self._claim(start, ends_s, lease_s, labels, request_id)
                else:
                    handle = await self._of(start, ends_s, lease_s, labels)
                recorded.kind = "snapshot" if handle.claim is None else handle.claim.kind
            await self._require_open(handle)
        except BaseException:
            self._stock.counts.failed += 1
            raise
        finally:
            del self._asking[request_id]
            asking.set()
        handle.request_id = request_id
        self._requests[request_id] = self._claimed[handle.id] = handle
        return handle

    async def _require_open(self, handle: PoolHandle) -> None:
        if self._stock.closed:
            await handle.close()
            raise CreateError(f"{self.address} was closed while it made this sandbox; connect to it again")

    async def _asked(self, request_id: str, ends_s: float) -> None:
        """Wait until nobody else is making it: then it is made, or it is ours to make."""
        try:
            async with asyncio.timeout_at(ends_s):
                while (asking := self._asking.get(request_id)) is not None:
                    await asking.wait()
        except TimeoutError:
            raise CreateError(f"{self.address} had not made the sandbox of this request in time; give it longer") from None

    async def _claim(self, spec: Spec, ends_s: float, lease_s: float, labels: Mapping[str, str], request_id: str) -> PoolHandle:
        asked_s = asyncio.get_running_loop().time()
        want = await self._stock.want(spec)
        owner = Owner(labels.get(OWNER, ""), want.secrets)
        claim = Claim(
            want=want,
            owner=owner,
            lease_s=lease_s,
            labels=labels,
            ends_s=ends_s,
            asked_s=asked_s,
            request_id=request_id,
        )
        return PoolHandle(self, await self._claims.claim(claim), spec, labels, claim)

    async def _of(self, snapshot: Snapshot, ends_s: float, lease_s: float, labels: Mapping[str, str]) -> PoolHandle:
        """Of a snapshot of the user's, by the source; it has a place as others do."""
        await self._stock.probe()
        held = await self._claims.of_snapshot(self.to_source(snapshot), ends_s, lease_s, labels)
        return PoolHandle(self, held, snapshot.spec, labels, None)

    def to_source(self, snapshot: Snapshot) -> Snapshot:
        return msgspec.structs.replace(snapshot, address=self._source.address)

    async def make_ready(self, handle: PoolHandle) -> None:
        claim = handle.claim
        if claim is None:
            assert handle.held.handle is not None
            await handle.held.handle.ready()
            return
        held = await self._claims.make_ready(claim, handle.held, lambda: handle.is_closed)
        if handle.is_closed:
            self._stock.drop(held)
            raise SandboxLost("the sandbox was closed before it was ready")
        if held is not handle.held:
            del self._claimed[handle.id]
            handle.become(held)
            self._claimed[handle.id] = handle
        counts = self._stock.counts
        counts.hits[claim.kind] += 1
        counts.claim_s.append(asyncio.get_running_loop().time() - claim.asked_s)
        self._refill.arrived(claim)

    async def take_back(self, handle: PoolHandle) -> None:
        if self._claimed.get(handle.id) is handle:
            del self._claimed[handle.id]
            self._requests.pop(handle.request_id, None)
        self._returning.add(handle)
        try:
            await self._reuse.take_back(handle.held, handle.claim)
        finally:
            self._returning.discard(handle)
        if not self._stock.closed:
            self._refill.soon()

    # ---- what is coming

    async def fill(self, spec: Spec, count: int = 1, *, stage: Stage = Stage.DEPS) -> None:
        """Make `count` idle sandboxes of `spec` now, up to its steps of that depth; raises what goes wrong."""
        want = await self._stock.want(spec)
        depths = tuple(Stage)
        done = sum(1 for step in want.state.steps if depths.index(step.stage) <= depths.index(stage))
        slot = self._stock.slot(want, done, spec.labels.get(OWNER, ""))
        slot.asked_s = asyncio.get_running_loop().time()
        hands = asyncio.Semaphore(self._stock.settings.parallel)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(count):
                    group.create_task(self._making.fill_one(slot, hands), context=contextvars.Context())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            self._refill.soon()

    async def expect(self, specs: Iterable[Spec], *, group: int = 8, in_s: Iterable[float] | None = None) -> None:
        """These will be claimed next, in this order, each by `group` rollouts at once; `in_s`: when, from now.

        They are made in advance whatever the policy; what is claimed is no longer expected.
        """
        if group < 1:
            raise SpecError(f"expect(group={group}): a group has at least one rollout")
        now_s = asyncio.get_running_loop().time()
        times = iter(in_s) if in_s is not None else None
        for spec in specs:
            want = await self._stock.want(spec)
            slot = self._stock.slot(want, len(want.state.steps), spec.labels.get(OWNER, ""))
            slot.asked_s = max(slot.asked_s, now_s)
            at_s = None if times is None else now_s + next(times, 0.0)
            self._stock.coming.append(Coming(key=slot.name, count=group, at_s=at_s))
        self._refill.soon()

    async def settled(self) -> None:
        """Return when nothing is made, verified or closed beside everything, and nothing is left to be; or it is held back."""
        self._refill.now()
        while await self._stock.done():
            self._refill.now()

    # ---- finding

    async def attach(self, id: str) -> Handle:
        claimed = self._claimed.get(id)
        if claimed is not None and (await self.probe()).attach:
            return claimed
        if id in self._stock.sandboxes and (await self.probe()).attach:
            raise SandboxLost(f"{self.address} has no sandbox {id}: it is idle in the pool, or being closed")
        return await self._source.attach(id)

    async def list(self, labels: Mapping[str, str]) -> tuple[Listed, ...]:
        """Claimed ones with the labels of their claims; idle ones only if asked for by the pool's own label."""
        listed: list[Listed] = []
        for there in await self._source.list({}):
            one, claimed = there, self._claimed.get(there.id)
            if claimed is not None:
                one = msgspec.structs.replace(there, labels=claimed.labels)
            elif one.labels.get(LABEL) == self._stock.labels[LABEL] and LABEL not in labels:
                continue
            if labels.items() <= one.labels.items():
                listed.append(one)
        return tuple(listed)

    async def snapshots(self) -> tuple[Snapshot, ...]:
        own = {entry.payload.snapshot.id for entry in self._stock.shelf if entry.payload.snapshot is not None}
        kept = (one for one in await self._source.snapshots() if one.id not in own)
        return tuple(msgspec.structs.replace(one, address=self.address) for one in kept)

    async def discard(self, snapshot: Snapshot) -> None:
        await self._source.discard(self.to_source(snapshot))

    async def collect(self) -> tuple[str, ...]:
        return await self._source.collect()

    # ---- seeing it

    def figures(self) -> Figures:
        """What it did so far, and what it holds now."""
        refill = self._refill
        return figures_of(self._stock, claimed=len(self._claimed), filling=refill.filling, held_back=refill.held_back)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Every sandbox, claimed ones too, every template, every task, and the source."""
        self._stock.closed = True
        self._refill.stop()
        await finish(self._end())

    async def _end(self) -> None:
        try:
            if self._stock.loop is asyncio.get_running_loop():  # else what waits for them waits in a loop that is over
                for handle in (*self._claimed.values(), *self._returning):
                    self._stock.begin(handle.close())
                await self._stock.close()
                await self._told()
        finally:
            await self._source.close()

    async def _told(self) -> None:
        """Who was claiming knows, and what they had is closed: the source is there until then, or for a while."""
        with suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                while self._asking:
                    await next(iter(self._asking.values())).wait()


def _address(source: str, settings: Settings, *, pressure: bool) -> str:
    """The one string that makes the same pool again."""
    inner = parse(source)
    own = settings.said() | ({} if pressure else {"pressure": "0"})
    options = {**inner.options, **{f"pool.{name}": value for name, value in own.items()}}
    return str(msgspec.structs.replace(inner, wrappers=("pool", *inner.wrappers), options=options))
