"""What becomes of a sandbox after its rollout: reset, verified and shelved for its owner, or closed; whichever costs less."""

import asyncio
import logging

from excise.errors import CapacityError, ExciseError, SpecError
from excise.substrate import Change, Handle, Snapshot
from excise.substrates.pool.claim import Claim
from excise.substrates.pool.figures import Quarantine
from excise.substrates.pool.making import Making
from excise.substrates.pool.owners import Owner
from excise.substrates.pool.shelf import Entry
from excise.substrates.pool.slots import Held, Slot
from excise.substrates.pool.stock import Stock

RESET_S = 60.0
"""A source that has not reset a sandbox by then never will: it is closed."""
MOST_EVIDENCE = 20
"""Paths in a quarantine's record."""

_log = logging.getLogger("excise")


class Reuse:
    """Sandboxes that come back."""

    def __init__(self, stock: Stock, making: Making) -> None:
        self._stock = stock
        self._making = making

    async def take_back(self, held: Held, claim: Claim | None) -> None:
        """On return nothing of the rollout runs any more."""
        stock = self._stock
        template = None if claim is None or stock.closed or held.leaving else self._template(claim, held)
        if template is None or claim is None or not await self._reset(held, template):
            stock.counts.discarded += 1
            await stock.gone(held)
            return
        stock.begin(self._shelved(held, template, claim.owner))

    def _template(self, claim: Claim, held: Held) -> Entry[Held] | None:
        """What to reset it to, if that pays: the state that was asked for, or else the one that it stood on the shelf with."""
        stock = self._stock
        if stock.settings.reuse == "never" or stock.settings.match == "none" or not stock.capabilities.diff:
            return None
        whole = stock.slot(claim.want, len(claim.want.state.steps), claim.owner.name)
        for slot in (whole, held.slot):
            if slot is None or slot.template is None or not slot.reusable:
                continue
            if stock.settings.reuse == "reset" or self._pays(slot):
                return slot.template
        return None

    def _pays(self, slot: Slot) -> bool:
        costs, key = self._stock.costs, slot.state.key
        again_s = costs.seconds("reset", key) + costs.seconds("verify", key)
        return again_s <= costs.seconds("close", self._stock.source.address) + costs.seconds("template", key)

    async def _reset(self, held: Held, template: Entry[Held]) -> bool:
        """Its own terms taken from it, and its state put back; whether that went well."""
        stock, handle = self._stock, held.handle
        slot, snapshot = template.payload.slot, template.payload.snapshot
        assert handle is not None
        assert slot is not None
        assert snapshot is not None
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        gone = False
        try:
            async with asyncio.timeout(RESET_S):
                await handle.adopt(slot.recipe(stock.capabilities).with_steps(()))
                gone = True
                await handle.reset(snapshot)
                await handle.renew(stock.settings.lease_s)
        except SpecError as error:
            _log.info("a used sandbox was not put back: %s", error)
            if gone:  # the snapshot is: somebody collected it
                stock.remove(template)
            return False
        except (ExciseError, TimeoutError) as error:
            _log.info("a used sandbox was not put back: %s: %s", type(error).__name__, error)
            return False  # it is dead, which is the rollout's doing as often as ours: another one is made when it is needed
        stock.costs.note("reset", slot.state.key, loop.time() - begun_s)
        return True

    async def _shelved(self, held: Held, template: Entry[Held], owner: Owner) -> None:
        stock, slot, snapshot = self._stock, template.payload.slot, template.payload.snapshot
        assert held.handle is not None
        assert slot is not None
        assert snapshot is not None
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        try:
            async with asyncio.timeout(RESET_S):
                changes = await self._changes(held.handle, snapshot)
                await self._making.weigh(slot, held, held.handle)
        except (SpecError, CapacityError):  # the template is gone, or there is no room: nothing is wrong, and nothing is proved
            stock.drop(held)
            return
        except (ExciseError, TimeoutError) as error:
            self._quarantine(held, slot, (f"{type(error).__name__}: {error}",))
            return
        except BaseException:
            stock.drop(held)
            raise
        if changes:
            self._quarantine(held, slot, tuple(f"{one.kind} {one.path}" for one in changes[:MOST_EVIDENCE]))
            return
        stock.costs.note("verify", slot.state.key, loop.time() - begun_s)
        stock.counts.reused += 1
        seen = slot.owner.secrets if slot.owner is not None else b""
        stock.shelve(slot, held, Owner(owner.name, seen))

    async def _changes(self, handle: Handle, snapshot: Snapshot) -> tuple[Change, ...]:
        return await handle.diff(snapshot if "snapshot" in self._stock.capabilities.diff else None)

    def _quarantine(self, held: Held, slot: Slot, evidence: tuple[str, ...]) -> None:
        """It is not what it should be: it is closed, what was seen is kept, and its state is made anew from now on."""
        assert held.handle is not None
        slot.reusable = False
        at_s = asyncio.get_running_loop().time()
        record = Quarantine(state=slot.title, sandbox=held.handle.id, at_s=at_s, evidence=evidence)
        self._stock.counts.quarantine.append(record)
        self._stock.drop(held)
