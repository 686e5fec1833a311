"""Whose is what: the substrate that is served, and the sandboxes, snapshots and leases of each key. Both paths call this."""

import asyncio
import contextlib
import contextvars
import hashlib
import logging
import secrets
import time
from collections import Counter, deque
from collections.abc import Coroutine, Mapping
from typing import Any

import msgspec

from excise.action import Exec
from excise.channel.refusal import Refused
from excise.clock import now_ns
from excise.errors import ExciseError, SandboxLost, SpecError, SubstrateError
from excise.handles import finish
from excise.server.figures import Figures, Life
from excise.server.keys import Key, is_name
from excise.server.ledger import Entry, Ledger
from excise.spec import Spec
from excise.substrate import Capabilities, Handle, Listed, Process, Snapshot, Substrate

OWNER = "owner"
"""The label that a pool keeps rollouts apart by: here, the key's name."""
KEY_LABEL = "excise-key"
_MOST_LABELS_BYTES = 16384
_LONGEST_LEASE_S = 7 * 86400.0
_MOST_LEFT = 64
_MOST_TOLD = 1024
_log = logging.getLogger("excise.server")


class Refusal(Exception):  # noqa: N818 - what a client is told, by its own name
    """A call that is refused by the server itself; it may be asked again later."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.text)
        self.refused = refused


class Held:
    """One sandbox of one key."""

    def __init__(self, handle: Handle, key: Key, labels: Mapping[str, str], request_id: str, id: str | None = None) -> None:
        self.id = id or f"{handle.id}-{secrets.token_hex(4)}"
        """What its client calls it: of this claim alone. A pool hands the same sandbox out again, and puts another one in its
        place; who comes too late must not find the next one's."""
        self.handle = handle
        self.key = key
        self.labels = labels
        self.request_id = request_id
        self.begun_s = asyncio.get_running_loop().time()
        self.until_s = 0.0
        self.timer: asyncio.TimerHandle | None = None
        self.life = Life(self.id, key.name, now_ns())
        self.left: dict[int, Process] = {}
        """Started commands that have ended and left others running, by the number of their call."""

    def leave(self, number: int, process: Process) -> None:
        self.left[number] = process
        while len(self.left) > _MOST_LEFT:
            del self.left[next(iter(self.left))]


class Host:
    """One substrate for many keys."""

    def __init__(self, substrate: Substrate, ledger: Ledger, keys: Mapping[str, Key] | None = None) -> None:
        """`keys`: by name; whose sandboxes of a server before this one are held again. Without, everybody's."""
        self.substrate = substrate
        self._keys = keys
        self.figures = Figures()
        self.draining = False
        self.capabilities: Capabilities | None = None
        self._ledger = ledger
        self._held: dict[str, Held] = {}
        self._making: dict[str, int] = {}
        self._snapshots: dict[str, tuple[str, Snapshot]] = {}
        self._taking: Counter[str] = Counter()
        self._left = asyncio.Event()
        """Set whenever a sandbox is closed, or one that was being made is not any more."""
        self._collected: dict[str, deque[str]] = {}
        """Whose lease ran out, and were closed, by key: until that is asked for."""
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- its life

    async def open(self) -> None:
        """Find out what is served, and look after what a server before this one left."""
        self.capabilities = await self.substrate.probe()
        left = self._ledger.open()
        if self._ledger.was_left:
            await self._take_over(left)

    async def _take_over(self, left: tuple[Entry, ...]) -> None:
        """Of a server that died: those that live and can be attached to are held again; the rest is closed."""
        assert self.capabilities is not None
        now = time.time()
        for entry in left:
            key = self._key_of(entry)
            handle = None
            if self.capabilities.attach and entry.until > now and key is not None:
                handle = await self._attached(entry.at or entry.id)
            if handle is None or key is None:
                self.figures.cleaned += 1
                self._ledger.note(Entry(entry.id, gone=True))
                _log.info(
                    "sandbox %s of key %s, which a server before this one held, is gone or has had its time",
                    entry.id,
                    entry.key,
                )
                continue
            held = Held(handle, key, entry.labels, "", entry.id)
            self._hold(held, min(entry.until - now, _LONGEST_LEASE_S))
            self.figures.readopted += 1
            _log.info("sandbox %s of key %s is held again: a server before this one died", entry.id, entry.key)
        with contextlib.suppress(ExciseError):
            removed = await self.substrate.collect()
            for name in removed:
                _log.info("%s was left by a server before this one, and is removed", name)

    def _key_of(self, entry: Entry) -> Key | None:
        """None: it was removed meanwhile, and nobody could come for its sandboxes."""
        if self._keys is not None:
            return self._keys.get(entry.key)
        return Key(name=entry.key, sha256="") if is_name(entry.key) else None

    async def _attached(self, id: str) -> Handle | None:
        """One that lives."""
        handle = None
        try:
            handle = await self.substrate.attach(id)
            await handle.alive()
        except ExciseError:
            if handle is not None:
                with contextlib.suppress(ExciseError):
                    await handle.close()
            return None
        return handle

    async def close(self) -> None:
        """Close every sandbox, and the substrate."""
        self.draining = True
        for held in tuple(self._held.values()):
            self._begin(self._quietly(held))
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self.substrate.close()
        self._ledger.close()

    async def drained(self) -> None:
        """Wait until no sandbox is left."""
        while self._held or any(self._making.values()):
            self._left.clear()
            await self._left.wait()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- sandboxes

    @property
    def is_behind(self) -> bool:
        return self._ledger.is_behind

    @property
    def count(self) -> int:
        return len(self._held)

    def know(self, keys: Mapping[str, Key]) -> None:
        """From now on there are these keys: sandboxes of others are closed, those of these have their caps of now."""
        self._keys = keys
        for held in self.all():
            key = keys.get(held.key.name)
            if key is None:
                _log.info("sandbox %s of key %s, which was removed, is closed", held.id, held.key.name)
                self._begin(self._quietly(held))
            else:
                held.key = key

    def of(self, key: Key) -> tuple[Held, ...]:
        return tuple(held for held in self._held.values() if held.key.name == key.name)

    def all(self) -> tuple[Held, ...]:
        return tuple(self._held.values())

    def find(self, key: Key, id: str) -> Held:
        """Another's is answered as one that is not there: whether it exists is nobody else's business."""
        held = self._held.get(id)
        if held is None or held.key.name != key.name:
            raise SandboxLost(f"there is no sandbox {id[:80]} here: it was closed, its lease ran out, or it never was")
        return held

    async def create(
        self,
        key: Key,
        start: Spec | Snapshot,
        *,
        deadline_s: float,
        lease_s: float,
        labels: Mapping[str, str],
        request_id: str,
    ) -> Held:
        if self.draining:
            raise Refusal(Refused("capacity", "the server is being stopped: ask another one, or later", retry_s=5.0))
        if sum(len(name) + len(value) for name, value in labels.items()) > _MOST_LABELS_BYTES:
            raise SpecError(f"labels have at most {_MOST_LABELS_BYTES} letters: they are kept for as long as the sandbox lives")
        if not 0 < deadline_s <= _LONGEST_LEASE_S or not 0 < lease_s <= _LONGEST_LEASE_S:
            raise SpecError(f"a deadline and a lease are above zero, and at most {_LONGEST_LEASE_S:g} s")
        asked = hashlib.sha256(f"{key.name}\0{request_id}".encode()).hexdigest()[:32]
        if (there := self._asked(asked)) is not None:
            return there
        making = self._making.get(key.name, 0)
        if len(self.of(key)) + making >= key.sandboxes:
            text = f"the key {key.name} has its {key.sandboxes} sandboxes: close one first"
            raise Refusal(Refused("capacity", text, retry_s=0.2))
        self._making[key.name] = making + 1
        labels = {**labels, OWNER: key.name, KEY_LABEL: key.name}
        started_s = asyncio.get_running_loop().time()
        made_of = self.own(key, start) if isinstance(start, Spec) else self.snapshot(key, start)
        try:
            handle = await self.substrate.create(
                made_of, deadline_s=deadline_s, lease_s=lease_s, labels=labels, request_id=asked
            )
        finally:
            self._making[key.name] -= 1
            self._left.set()
        self.figures.create_s.append(asyncio.get_running_loop().time() - started_s)
        if (there := self._asked(asked)) is not None:
            return there  # asked for twice at once
        held = Held(handle, key, labels, asked)
        self._hold(held, lease_s)
        return held

    def _asked(self, request_id: str) -> Held | None:
        return next((held for held in self._held.values() if held.request_id == request_id), None)

    def own(self, key: Key, spec: Spec) -> Spec:
        """The same spec, kept apart from other keys': what its steps lead to is not shared with them.

        States are known by their steps' actions, so the first has one more, which does nothing and names the key; siblings are
        found by what a step is about, so that names it too.
        """
        if spec.mounts or spec.devices:
            raise SpecError("a server's own directories and devices are not for its clients: leave mounts and devices out")
        steps = spec.all_steps()
        if not steps:
            return spec
        first, *rest = (msgspec.structs.replace(step, of=f"{key.name}: {step.of}") if step.of else step for step in steps)
        salt = Exec(("true", f"of the key {key.name}"), timeout_s=60)
        return spec.with_steps((msgspec.structs.replace(first, actions=(salt, *first.actions)), *rest))

    def _hold(self, held: Held, lease_s: float) -> None:
        self._held[held.id] = held
        self.lease(held, lease_s)

    def lease(self, held: Held, lease_s: float) -> None:
        """From now on it lives for so long, unless it is renewed."""
        loop = asyncio.get_running_loop()
        if held.timer is not None:
            held.timer.cancel()
        held.until_s = loop.time() + lease_s
        held.timer = loop.call_later(lease_s, self._expired, held)
        until = time.time() + lease_s
        self._ledger.note(Entry(held.id, held.key.name, held.labels, until, at=held.handle.id))

    async def renew(self, held: Held, lease_s: float) -> None:
        if not 0 < lease_s <= _LONGEST_LEASE_S:
            raise SpecError(f"a lease is above zero, and at most {_LONGEST_LEASE_S:g} s")
        await held.handle.renew(lease_s)
        self.lease(self.find(held.key, held.id), lease_s)  # it may have been closed meanwhile

    def _expired(self, held: Held) -> None:
        self.figures.expired += 1
        self._collected.setdefault(held.key.name, deque(maxlen=_MOST_TOLD)).append(held.id)
        _log.info("sandbox %s of key %s: nobody renewed its lease, and it is closed", held.id, held.key.name)
        self._begin(self._quietly(held))

    async def _quietly(self, held: Held) -> None:
        """Nobody waits for it: what goes wrong has been logged."""
        with contextlib.suppress(ExciseError):
            await self._end(held)

    async def end(self, held: Held) -> None:
        await finish(self._end(held))

    async def _end(self, held: Held) -> None:
        self._held.pop(held.id, None)
        if held.timer is not None:
            held.timer.cancel()
        held.left.clear()
        try:
            await held.handle.close()
        except ExciseError as error:
            _log.warning("sandbox %s could not be closed: %s", held.id, error)
            raise
        finally:
            self._left.set()
            self.figures.ended.append(held.life)
            self._ledger.note(Entry(held.id, gone=True))

    def collected(self, key: Key) -> tuple[str, ...]:
        """What was closed because its lease ran out, since it was last asked: nothing waits for gc here."""
        return tuple(self._collected.pop(key.name, ()))

    def listed(self, key: Key, labels: Mapping[str, str]) -> tuple[Listed, ...]:
        now_s = asyncio.get_running_loop().time()
        found: list[Listed] = []
        for held in self.of(key):
            shown = {name: value for name, value in held.labels.items() if name not in (OWNER, KEY_LABEL)}
            if labels.items() <= shown.items():
                age_s, left_s = now_s - held.begun_s, held.until_s - now_s
                found.append(Listed(id=held.id, labels=shown, age_s=age_s, lease_left_s=left_s))
        return tuple(found)

    # ---- snapshots

    def snapshot(self, key: Key, snapshot: Snapshot) -> Snapshot:
        """As the substrate knows it; what its client says of it is not believed, but for the spec's secrets."""
        whose, known = self._snapshots.get(snapshot.id, ("", None))
        if known is None or whose != key.name:
            raise SpecError(f"there is no snapshot {snapshot.id[:80]} here: it was discarded, or is another server's")
        return msgspec.structs.replace(known, spec=msgspec.structs.replace(known.spec, secrets=snapshot.spec.secrets))

    async def take(self, held: Held, keep_s: float | None) -> Snapshot:
        whose = held.key.name
        if len(self.taken(held.key)) + self._taking[whose] >= held.key.snapshots:
            raise SubstrateError(f"the key {whose} has its {held.key.snapshots} snapshots: discard one first")
        self._taking[whose] += 1
        try:
            taken = await held.handle.snapshot(keep_s=keep_s)
        finally:
            self._taking[whose] -= 1
        self._snapshots[taken.id] = (whose, taken)
        if keep_s is not None:  # then its substrate forgets it
            asyncio.get_running_loop().call_later(keep_s, self._snapshots.pop, taken.id, None)
        return taken

    def taken(self, key: Key) -> tuple[Snapshot, ...]:
        return tuple(taken for whose, taken in self._snapshots.values() if whose == key.name)

    async def discard(self, key: Key, snapshot: Snapshot) -> None:
        with contextlib.suppress(SpecError):  # twice is fine
            known = self.snapshot(key, snapshot)
            await self.substrate.discard(known)
            self._snapshots.pop(known.id, None)

    def offered(self) -> Capabilities:
        """What is served can do, for clients: the server holds their sandboxes for them, and keeps its own files to itself."""
        assert self.capabilities is not None
        return msgspec.structs.replace(self.capabilities, attach=True, mounts=False, devices=False)
