"""Step layers: the steps of a spec built once, by one builder however many ask, each saved as a layer over those before it.

saved/steps/KEY.json   the layers a row of steps led to; KEY is a hash chain over the image, what steps see, and each step
saved/locks/KEY        held by the process that builds it
"""

import asyncio
import contextvars
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from excise.action import Shell
from excise.spec import Spec, Step
from excise.storage.background import locked
from excise.storage.pins import Pin
from excise.storage.saved.layers import SavedLayers, opened, read
from excise.storage.store import Image, identity
from excise.storage.trees.storekeeper import Storekeeper

LEASE_S = 14 * 86400.0
"""How long steps are kept after they were last used."""
MOST_LAYERS = 16
"""Steps that lead to more are squashed."""
_VERSION = 1

Build = Callable[[Step, tuple[Path, ...]], AbstractAsyncContextManager[int]]
"""Runs a step in a sandbox over these layers, topmost first, and the image, and gives a descriptor of what it wrote: a layer
that nobody writes to any more. CreateError if the step fails."""


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is on the disk of a row of steps."""

    layers: tuple[str, ...]
    until_s: float
    image: str
    steps: tuple[str, ...]
    """Their names."""


class Start(NamedTuple):
    """Where a sandbox of a spec begins."""

    paths: tuple[Path, ...] = ()
    """Saved layers over the image, the topmost first."""
    steps: tuple[Step, ...] = ()
    """What is still to be run in the sandbox itself."""


class _Held(NamedTuple):
    digests: tuple[str, ...]
    pin: Pin


class _Building:
    """A row of steps on its way to those who asked for it."""

    def __init__(self, task: asyncio.Task[_Held]) -> None:
        self.task = task
        self.waiting = 0


def is_shared(spec: Spec) -> bool:
    """Whether what its steps lead to may be kept for others.

    Steps see secrets as they see all of env, and may write them into files; what is mounted may be another tomorrow; and what a
    session remembers is no file. So the steps of a spec that has any of these, or a device, are run in each of its sandboxes.
    So are those of one that asks for it.
    """
    if not all(step.share for step in spec.all_steps()):
        return False
    actions = (action for step in spec.all_steps() for action in step.actions)
    in_session = any(isinstance(action, Shell) and action.session is not None for action in actions)
    return not (spec.secrets or spec.mounts or spec.devices or in_session)


def keys(spec: Spec, image: Image, terms: Mapping[str, str]) -> tuple[str, ...]:
    """A key for each step and all before it. It depends on state alone: not on limits, networks, labels, names of steps."""
    seen = {
        "version": _VERSION,
        "image": image.digest,
        "shown": identity(*(Path(host) for host, _ in image.binds)),
        "env": {**image.env, **spec.env},
        "workdir": spec.workdir if spec.workdir is not None else image.workdir,
        "user": spec.user if spec.user is not None else image.user,
        "terms": dict(terms),
    }
    chain = _hash(b"", seen)
    made: list[str] = []
    for step in spec.all_steps():
        chain = _hash(chain.encode(), step.actions)
        made.append(chain)
    return tuple(made)


def _hash(before: bytes, what: object) -> str:
    return hashlib.sha256(before + b"\0" + msgspec.json.encode(what, order="deterministic")).hexdigest()


class StepLayers:
    """For one open substrate: what it once gave out stays, whatever is collected, until it is closed."""

    def __init__(self, keeper: Storekeeper, home: Path | None = None) -> None:
        self._layers = SavedLayers(keeper, home)
        self._root = self._layers.records("steps")
        self._locks = self._layers.home / "locks"
        self._locks.mkdir(mode=0o700, exist_ok=True)
        self._held: dict[str, _Held] = {}
        self._building: dict[str, _Building] = {}

    async def layers_for(self, spec: Spec, image: Image, build: Build, terms: Mapping[str, str] | None = None) -> Start:
        """Where a sandbox of `spec` begins: over its steps, built now unless they are saved; or with them still to be run.

        `terms`: what else of the substrate decides what steps lead to.
        """
        steps = spec.all_steps()
        if not steps or not is_shared(spec):
            return Start(steps=steps)
        chain = keys(spec, image, terms or {})
        held = self._held.get(chain[-1])
        if held is None:
            held = await self._once(chain[-1], lambda: self._resolve(chain, steps, image, build))
        return Start(paths=tuple(self._layers.path(digest) for digest in held.digests))

    async def close(self) -> None:
        """Give up what is being built, and let go of what was given out."""
        building, self._building = tuple(self._building.values()), {}
        for each in building:
            each.task.cancel()
        for each in building:
            with suppress(Exception, asyncio.CancelledError):
                await each.task
        self.abandon()

    def abandon(self) -> None:
        """Let go of what was given out; what was being built ended with its event loop."""
        for held in self._held.values():
            held.pin.close()
        self._held.clear()

    # ---- one builder

    async def _once(self, key: str, make: Callable[[], Awaitable[_Held]]) -> _Held:
        """Made by one task for all who ask meanwhile; who is the last to give up ends it."""
        building = self._building.get(key)
        if building is None:
            # In a context of its own: what is built for all is no part of one rollout's trace.
            task = asyncio.get_running_loop().create_task(self._made(key, make), context=contextvars.Context())
            building = self._building[key] = _Building(task)
        building.waiting += 1
        try:
            return await asyncio.shield(building.task)
        except asyncio.CancelledError:
            if building.waiting == 1 and not building.task.done():
                building.task.cancel()
                await asyncio.wait([building.task])
            raise
        finally:
            building.waiting -= 1
            if building.waiting == 0 and self._building.get(key) is building:
                del self._building[key]

    async def _made(self, key: str, make: Callable[[], Awaitable[_Held]]) -> _Held:
        held = self._held[key] = await make()
        return held

    async def _resolve(self, chain: Sequence[str], steps: Sequence[Step], image: Image, build: Build) -> _Held:
        """Over the longest row of steps that is saved, build the rest, one after another."""
        held, count = None, len(chain)
        while count and (held := self._find(chain[count - 1])) is None:
            count -= 1
        for number in range(count, len(chain)):
            below = held
            try:
                held = await self._step(chain[number], steps[: number + 1], image, below.digests if below else (), build)
            finally:
                if below is not None:
                    below.pin.close()  # the one above has its layers, too
        assert held is not None
        if count < len(chain):
            await self._layers.collect()
        return held

    async def _step(self, key: str, steps: Sequence[Step], image: Image, below: tuple[str, ...], build: Build) -> _Held:
        async with locked(self._locks / key):
            if (held := self._find(key)) is not None:  # another process was faster
                return held
            async with build(steps[-1], tuple(self._layers.path(digest) for digest in below)) as upper:
                digests, pin = await self._saved(upper, below)
            with pin:
                held = _Held(digests, self._layers.pin(digests))
                record = StepRecord(
                    layers=held.digests,
                    until_s=time.time() + LEASE_S,
                    image=image.name,
                    steps=tuple(step.name for step in steps),
                )
                self._layers.write(self._path(key), msgspec.json.encode(record))
            return held

    async def _saved(self, upper: int, below: tuple[str, ...]) -> tuple[tuple[str, ...], Pin]:
        """The layers of all steps so far. A long row becomes one: each look-up of a name asks every layer."""
        if len(below) < MOST_LAYERS:
            made, pin = await self._layers.save([upper])
            return (made.digest, *below), pin
        with ExitStack() as stack:
            under = [stack.enter_context(opened(self._layers.path(digest))) for digest in below]
            made, pin = await self._layers.save([upper, *under])
        return (made.digest,), pin

    # ---- records

    def _find(self, key: str) -> _Held | None:
        """What is saved for `key`, pinned, its lease renewed when half of it is over."""
        record = read(self._path(key), StepRecord)
        if record is None:
            return None
        pin = self._layers.pin(record.layers)
        try:
            record = self._usable(key)  # read again: it may have been collected before it was pinned
        except BaseException:
            pin.close()
            raise
        if record is None:
            pin.close()
            return None
        return _Held(record.layers, pin)

    def _usable(self, key: str) -> StepRecord | None:
        record = read(self._path(key), StepRecord)
        now_s = time.time()
        if record is None or record.until_s <= now_s or any(self._layers.get(digest) is None for digest in record.layers):
            return None
        if record.until_s - now_s < LEASE_S / 2:
            renewed = msgspec.structs.replace(record, until_s=now_s + LEASE_S)
            self._layers.write(self._path(key), msgspec.json.encode(renewed))
        return record

    def _path(self, key: str) -> Path:
        return self._root / f"{key}.json"
