"""What the pool does by itself: refill, expiry, leases. Never in a rollout's trace, never more than a few at once."""

import asyncio
import contextvars
import math
from collections.abc import Callable

import msgspec

from excise.errors import ExciseError
from excise.substrates.pool.claim import Claim
from excise.substrates.pool.making import Making
from excise.substrates.pool.policies.holding import LEAD, targets, worth
from excise.substrates.pool.policies.leaving import expired, next_expiry_s
from excise.substrates.pool.policies.view import Policy, View
from excise.substrates.pool.pressure import LOOK_AGAIN_S
from excise.substrates.pool.shelf import Entry
from excise.substrates.pool.slots import MEMORY_S, Held, Slot
from excise.substrates.pool.stock import Stock

SOON_S = 0.01
"""Claims that come together are planned for together, and after they were served."""
MOST_SHARE = 20
"""Planning takes at most one part in so many of the loop's time."""
BACKOFF_S = 1.0
LONGEST_BACKOFF_S = 300.0
MOST_FAILURES = 5
"""In a row; after that a state is not made in advance before a claim of it has succeeded."""
OFTEN = 1.5
"""Claims of a state in the last minute or so from which on one of it is held in any case: it was asked for twice."""
RENEW_S = 10.0


class Refill:
    """Plans when something happened, and when something is due; there is no loop that turns by itself."""

    def __init__(self, stock: Stock, making: Making, pressure: Callable[[], str]) -> None:
        self._stock = stock
        self._making = making
        self._pressure = pressure
        self._arrivals: list[tuple[Claim, float]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._planned_s = -math.inf
        self._took_s = 0.0
        self._renewed_s: float | None = None
        self.filling = 0
        self.held_back = ""

    def arrived(self, claim: Claim) -> None:
        """Somebody was served: what is known of demand is worked out later, off the claim's path."""
        self._arrivals.append((claim, asyncio.get_running_loop().time()))
        self.soon()

    def soon(self) -> None:
        loop = asyncio.get_running_loop()
        at_s = max(loop.time() + SOON_S, self._planned_s + MOST_SHARE * self._took_s)
        if self._timer is not None:
            if self._timer.when() <= at_s:
                return
            self._timer.cancel()
        self._plan_at(at_s)

    def now(self) -> None:
        """Plan at once, for who wants to know whether there is anything left to do."""
        self.stop()
        if not self._stock.closed:
            contextvars.Context().run(self._plan)

    def _plan_at(self, at_s: float) -> None:
        if not self._stock.closed:
            self._timer = asyncio.get_running_loop().call_at(at_s, self._plan, context=contextvars.Context())

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ---- the plan

    def _plan(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer, self._planned_s = None, loop.time()
        self._note_arrivals()
        due_s = min(self._expire(), self._fill_up(), self._renew())
        self._took_s = loop.time() - self._planned_s
        if self._timer is None and due_s < math.inf:
            self._plan_at(max(due_s, self._planned_s + SOON_S))

    def _note_arrivals(self) -> None:
        """A state was asked for by who wanted it, and by who wanted more and found nothing deeper."""
        arrivals, self._arrivals = self._arrivals, []
        for claim, at_s in arrivals:
            whole = len(claim.want.state.steps)
            for done in range(max(0, claim.found), whole):
                self._stock.slot(claim.want, done, claim.owner.name).asked(at_s)
            slot = self._stock.slot(claim.want, whole, claim.owner.name)
            slot.asked(at_s)
            slot.failures, slot.reason, slot.retry_s = 0, "", -math.inf
            self._came(slot.name)

    def _came(self, name: str) -> None:
        """One of those who were said to come."""
        coming = self._stock.coming
        for index, group in enumerate(coming):
            if group.key == name:
                left = group.count - 1
                coming[index : index + 1] = [msgspec.structs.replace(group, count=left)] if left else []
                return

    def _expire(self) -> float:
        """Close what nobody asks for; when the next is due."""
        stock, idle_s = self._stock, self._stock.settings.idle_s
        view = stock.view()
        for name in expired(view, idle_s):
            slot = stock.slots.get(name.removesuffix("\0template"))
            if slot is None:
                continue
            entries = [slot.template] if name != slot.name else [*slot.idle.values()]
            for entry in entries:
                if entry is not None:
                    stock.counts.expired += 1
                    stock.remove(entry)
        coming = {group.key for group in stock.coming}
        gone = [slot.name for slot in stock.slots.values() if slot.is_forgotten(view.now_s, idle_s)]
        for name in gone:
            if name not in coming:
                del stock.slots[name]
        return next_expiry_s(view, idle_s)

    # ---- refill

    def _fill_up(self) -> float:
        """Begin what is lacking; when to look again."""
        stock, settings = self._stock, self._stock.settings
        self.held_back = ""
        if settings.policy == "none" and not stock.coming:
            return math.inf
        view = stock.view()
        wanted = {name: count for name, count in targets(view, self._policy(view)).items() if self._is_kept(view, name)}
        lacking = {name: count - view.states[name].idle - view.states[name].filling for name, count in wanted.items()}
        lacking = {name: count for name, count in lacking.items() if count > 0}
        for slot in stock.slots.values():
            slot.wanted_s = (slot.wanted_s or view.now_s) if slot.name in lacking else None
        if not lacking:
            return self._next_group(view)
        self.held_back = self._pressure()
        if self.held_back:
            return view.now_s + LOOK_AGAIN_S  # the kernel tells nobody that it has eased
        due_s = math.inf
        for name in sorted(lacking, key=lambda name: -worth(view.states[name])):
            slot = stock.slots[name]
            if slot.retry_s > view.now_s:
                due_s = min(due_s, slot.retry_s)
                continue
            for _ in range(lacking[name]):
                if not self._begin(slot, view, wanted):
                    return due_s
        return min(due_s, self._next_group(view))

    def _is_kept(self, view: View, name: str) -> bool:
        """What has expired is not made again, only to expire."""
        recent = view.now_s - view.states[name].last_asked_s < self._stock.settings.idle_s
        return recent or any(group.key == name for group in view.coming)

    def _policy(self, view: View) -> Policy:
        settings, slots = self._stock.settings, self._stock.slots.values()
        fixed: dict[str, int] = {}
        if settings.policy == "fixed":
            fixed = {slot.name: settings.keep for slot in slots if slot.done == len(slot.want.state.steps)}
        elif settings.policy == "demand":
            # However fast a refill is, who comes finds one only if one is there.
            fixed = {slot.name: 1 for slot in slots if slot.rate_per_s(view.now_s) * MEMORY_S >= OFTEN}
        return Policy(fixed=fixed, percentile=settings.percentile if settings.policy == "demand" else None)

    def _next_group(self, view: View) -> float:
        """When the policy will begin with the next group that is said to come at some time."""
        due_s, work_s = math.inf, 0.0
        for group in sorted(view.coming, key=lambda group: group.at_s or view.now_s):
            refill_s = view.states[group.key].refill_s
            work_s += refill_s * group.count / view.parallel
            begin_s = (group.at_s or 0.0) - refill_s - LEAD * work_s
            if begin_s > view.now_s:
                due_s = min(due_s, begin_s)
        return due_s

    def _begin(self, slot: Slot, view: View, wanted: dict[str, int]) -> bool:
        """Whether there was a hand and a place for one more."""
        stock = self._stock
        if self.filling >= stock.settings.parallel:
            return False
        if not stock.places.take(slot.size_bytes):
            self._let_go(view, wanted)
            return False
        self.filling += 1
        slot.filling += 1
        stock.begin(self._fill(slot, Held(size_bytes=slot.size_bytes)), stops=True)
        return True

    def _let_go(self, view: View, wanted: dict[str, int]) -> None:
        """Close one that is idle beyond what is wanted of it, if there is one: its place is wanted for another."""
        spare = [slot for slot in self._stock.slots.values() if len(slot.idle) > wanted.get(slot.name, 0)]
        if spare and not self._stock.places.waiting:
            least = min(spare, key=lambda slot: worth(view.states[slot.name]))
            self._stock.counts.evicted += 1
            self._stock.remove(next(iter(least.idle.values())))

    async def _fill(self, slot: Slot, held: Held) -> None:
        stock, loop = self._stock, asyncio.get_running_loop()
        wanted_s = slot.wanted_s if slot.wanted_s is not None else loop.time()
        try:
            await self._making.fill(slot, held)
        except Exception as error:  # noqa: BLE001 - whatever a source raises: what keeps failing is not tried for ever
            self._failed(slot, error)
        else:
            stock.counts.refilled += 1
            stock.counts.refill_lag_s.append(loop.time() - wanted_s)
            slot.failures, slot.reason = 0, ""
        finally:
            self.filling -= 1
            slot.filling -= 1
            if not stock.closed:
                self.soon()

    def _failed(self, slot: Slot, error: Exception) -> None:
        """Try later, and less and less often; in the end not before somebody has succeeded with it."""
        slot.failures += 1
        slot.reason = f"{type(error).__name__}: {error}"
        pause_s = min(BACKOFF_S * 2 ** (slot.failures - 1), LONGEST_BACKOFF_S)
        now_s = asyncio.get_running_loop().time()
        slot.retry_s = now_s + pause_s if slot.failures < MOST_FAILURES else math.inf

    # ---- leases

    def _renew(self) -> float:
        """While we live, what is idle is not collected; when we do not, it is, a lease later."""
        stock, now_s = self._stock, self._planned_s
        every_s = stock.settings.lease_s / 3
        if not len(stock.shelf):
            self._renewed_s = None
            return math.inf
        if self._renewed_s is None:
            self._renewed_s = now_s
        if now_s - self._renewed_s >= every_s:
            self._renewed_s = now_s
            stock.begin(self._renewed())
        return self._renewed_s + every_s

    async def _renewed(self) -> None:
        for entry in self._stock.shelf:
            slot = entry.payload.slot
            if slot is not None and entry.id in slot.idle:
                entry.payload.renewing = self._stock.begin(self._renew_one(entry))
                await asyncio.wait({entry.payload.renewing})

    async def _renew_one(self, entry: Entry[Held]) -> None:
        held = entry.payload
        assert held.handle is not None
        try:
            async with asyncio.timeout(RENEW_S):
                await held.handle.renew(self._stock.settings.lease_s)
        except (ExciseError, TimeoutError):
            self._stock.counts.dead += 1
            self._stock.remove(entry)
        finally:
            held.renewing = None
