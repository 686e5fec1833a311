"""One connection to a guest: frames to the actions they belong to, within bounds that the guest cannot move.

A guest stands beside sandboxed code and may be taken over by it. Whatever it sends costs this one sandbox and bounded memory:
the first thing that no guest of ours would send ends the link, and with it every action in flight is SandboxLost.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from excise.errors import SandboxLost
from excise.guest import wire
from excise.guest.carrier import Carrier
from excise.guest.question import Question

_FULL_BYTES = wire.WINDOW
_LAST_ID = (1 << 32) - 1


class Receiver(Protocol):
    """An action in flight, as its link sees it. What these raise as ProtocolError ends the link."""

    def output(self, stream: int, data: bytes) -> None: ...
    def credited(self, count: int) -> None: ...
    def started(self) -> None: ...
    def ended(self, how: wire.Ended) -> bool:
        """Whether nothing more may come for it; so for the next two."""
        ...

    def refused(self, why: wire.Refusal) -> bool: ...
    def killed(self) -> bool: ...
    def lost(self) -> None: ...
    def pump(self) -> None:
        """There is room again to send."""
        ...


class Place(NamedTuple):
    """Where a link stands: what the link to a copy of the guest goes on from."""

    epoch: int = 0
    next: int = 1
    part: bytes = b""
    """Of a frame that has come in part."""
    greeted: bool = False


class Link:
    """The host's end. Everything happens in the loop's callbacks; only actions are waited for."""

    def __init__(
        self,
        carrier: Carrier,
        on_lost: Callable[[str], None] | None = None,
        place: Place = Place(),  # noqa: B008 - frozen
    ) -> None:
        """`place`: of the link to the guest that this one is a copy of: what that one's actions say is heard by nobody."""
        self._carrier = carrier
        self._on_lost = on_lost
        self._receivers: dict[int, Receiver] = {}
        self._next = self._first = place.next
        self._part = bytearray(place.part)
        self._greeted = place.greeted
        self._answer: asyncio.Future[None] | None = None
        self._frozen: tuple[int, asyncio.Future[None]] | None = None
        self._held: bytearray | None = None
        self._grants: dict[tuple[int, int], int] = {}
        self._blocked: dict[Receiver, None] = {}
        self.epoch = place.epoch
        self.abilities = 0
        """What the guest said it can do; known from its first answer on."""
        self.reason: str | None = None
        """Why there is nobody at the other end any more."""
        self.paused = False
        """Nothing is expected of a guest that its substrate has stopped."""
        self.conceal: Callable[[str], str] = str
        """What a guest's words must go through before they are an error's text."""
        carrier.begin(received=self._take, drained=self._drained, ended=lambda why: self.fail(f"the guest is gone: {why}"))

    # ---- to the guest

    def greet(self, env: Mapping[str, str], cwd: str | None, user: str | None, *, root: bool = False) -> None:
        """Begin a life: what actions have unless they say otherwise. Those of the life before are lost.

        `root`: it begins when the guest was given another root, beside this link.
        """
        self.check()
        hello = wire.hello(self.epoch + 1, env.items(), cwd, user, root=root)
        self.epoch += 1
        self._greeted = False
        self._lose_all()
        self._carrier.send(hello)

    async def greeted(self) -> None:
        """Wait until the guest has answered the greeting: every process of the life before is dead."""
        self.check()
        if not self._greeted:
            self._answer = asyncio.get_running_loop().create_future()
            await self._answer
            self.check()

    async def answer(self) -> None:
        """One frame out and one back: a guest that is dead, stopped or stuck does not answer."""
        id = self.number()  # noqa: A001 - what a frame's id is called
        asked = Question()
        # That nothing of an action is left which never was is what a guest says at once, and itself.
        self.open(((id, asked),), wire.frame(wire.KILL, id, self.epoch))
        if not await asked.answered:
            raise SandboxLost(self.reason or "the sandbox was reset while it was asked whether it lives")

    async def freeze(self) -> None:
        """Return when every process inside stands still. What is asked for until `thaw` is sent then."""
        id = self.number()  # noqa: A001 - what a frame's id is called
        self._frozen = (id, asyncio.get_running_loop().create_future())
        self._carrier.send(wire.frame(wire.FREEZE, id, self.epoch))
        self._held = bytearray()
        self.paused = True
        await self._frozen[1]
        self.check()

    def thaw(self) -> None:
        """They go on."""
        held, self._held, self._frozen, self.paused = self._held, None, None, False
        if self.reason is None:
            self._carrier.send(wire.frame(wire.THAW, self.number(), self.epoch))
            self._carrier.send(bytes(held or b""))

    async def renew(self, time_ns: int, machine_id: bytes, seed: bytes) -> None:
        """The guest's machine, which is a copy, gets the clock, names and random numbers of its own."""
        id = self.number()  # noqa: A001 - what a frame's id is called
        asked = Question()
        self.open(((id, asked),), wire.renew(id, self.epoch, time_ns, machine_id, seed))
        if not await asked.answered:
            raise SandboxLost(self.reason or "the sandbox was reset while it was renewed")

    async def still(self) -> None:
        """Return when the guest has taken all it was sent. What is asked for until `go_on` is sent then."""
        id = self.number()  # noqa: A001 - what a frame's id is called
        asked = Question()
        self._held = bytearray()
        self.paused = True
        self._receivers[id] = asked
        self._carrier.send(wire.frame(wire.KILL, id, self.epoch))
        if not await asked.answered:
            raise SandboxLost(self.reason or "the sandbox was reset while it was made to stand still")

    def place(self) -> Place:
        """Where it stands; exact while the guest's machine is stopped, and everything it said has been read."""
        return Place(self.epoch, self._next, bytes(self._part), self._greeted)

    def go_on(self) -> None:
        """Send what was asked for since `still`."""
        held, self._held, self.paused = self._held, None, False
        if self.reason is None and held:
            self._carrier.send(bytes(held))

    def _send(self, frames: bytes) -> None:
        if self._held is None:
            self._carrier.send(frames)
        else:
            self._held += frames

    def number(self, count: int = 1) -> int:
        """The first of `count` ids in a row, which nothing of this link had before."""
        self.check()
        if self._next + count > _LAST_ID:
            self.fail("a guest's four thousand million ids are used up")
            self.check()
        first = self._next
        self._next += count
        return first

    def open(self, receivers: Iterable[tuple[int, Receiver]], opening: bytes) -> None:
        """Send what begins these actions, and pass on what comes for them until each says that nothing more may."""
        self.check()
        self._receivers.update(receivers)
        self._send(opening)

    def watch(self, id: int, receiver: Receiver) -> None:
        """Something will be answered for an action that has ended."""
        self._receivers[id] = receiver

    def send(self, frame: bytes) -> None:
        if self.reason is None:
            self._send(frame)

    @property
    def full(self) -> bool:
        """Whether the guest does not take what it is sent: then stdin waits on this side, where it is the caller's."""
        return self._carrier.waiting_bytes + len(self._held or b"") > _FULL_BYTES

    def call_when_drained(self, receiver: Receiver) -> None:
        self._blocked[receiver] = None

    def grant(self, id: int, stream: int, count: int) -> None:
        """Let the guest send more. One that does not read is told later, in one frame a stream: nothing piles up."""
        if not self._carrier.waiting_bytes:
            self.send(wire.credit(id, self.epoch, stream, count))
        elif id in self._receivers:
            self._grants[id, stream] = self._grants.get((id, stream), 0) + count

    def _drained(self) -> None:
        grants, self._grants = self._grants, {}
        self.send(b"".join(wire.credit(action, self.epoch, stream, count) for (action, stream), count in grants.items()))
        blocked, self._blocked = self._blocked, {}
        for receiver in blocked:
            receiver.pump()

    # ---- from the guest

    def _take(self, data: memoryview) -> None:
        try:
            at, end = (self._fill(data) if self._part else 0), len(data)
            while end - at >= wire.HEADER_BYTES and self.reason is None:
                head = wire.header(data, at)
                begin = at + wire.HEADER_BYTES
                if begin + head.length > end:
                    break
                at = begin + head.length
                self._dispatch(head, bytes(data[begin:at]))
        except wire.ProtocolError as error:
            self.fail(f"the guest broke the protocol: it sent {error}")
        else:
            if at < end and self.reason is None:
                self._part += data[at:]

    def _fill(self, data: memoryview) -> int:
        """Complete the frame that came in part, as far as `data` goes; how much of it was used."""
        part, used = self._part, 0
        if len(part) < wire.HEADER_BYTES:
            used = min(wire.HEADER_BYTES - len(part), len(data))
            part += data[:used]
            if len(part) < wire.HEADER_BYTES:
                return used
        head = wire.header(part)
        missing = wire.HEADER_BYTES + head.length - len(part)
        more = min(missing, len(data) - used)
        part += data[used : used + more]
        if more == missing:
            self._part = bytearray()
            self._dispatch(head, bytes(memoryview(part)[wire.HEADER_BYTES :]))
        return used + more

    def _dispatch(self, head: wire.Header, payload: bytes) -> None:
        if head.epoch != self.epoch:
            return  # an answer of an earlier life
        if head.type == wire.HELLO:
            self._hear(payload)
            return
        if head.type == wire.FROZEN and self._frozen is not None and self._frozen[0] == head.id:
            _settle(self._frozen[1])
            return
        receiver = self._receivers.get(head.id)
        if receiver is None or not self._greeted:
            if head.type == wire.CREDIT and 0 < head.id < self._next:
                return  # on its way when the action ended
            if 0 < head.id < self._first:
                self._drop(head)
                return
            raise wire.ProtocolError(f"a frame of type {head.type} for action {head.id}, which does not wait for one")
        if self._deliver(receiver, head, payload):
            del self._receivers[head.id]
            self._grants.pop((head.id, wire.STDOUT), None)
            self._grants.pop((head.id, wire.STDERR), None)
            self._blocked.pop(receiver, None)

    def _drop(self, head: wire.Header) -> None:
        """Of an action whose caller has another copy of this guest: what it prints is read into nothing, so that it goes on."""
        if head.type == wire.OUTPUT and self._greeted:
            self.send(wire.credit(head.id, self.epoch, head.flags, head.length))

    def _deliver(self, receiver: Receiver, head: wire.Header, payload: bytes) -> bool:
        """Whether nothing more may come for it."""
        match head.type:
            case wire.OUTPUT:
                receiver.output(head.flags, payload)
            case wire.ENDED:
                return receiver.ended(wire.ended(payload))
            case wire.CREDIT:
                receiver.credited(wire.granted(payload))
            case wire.STARTED:
                receiver.started()
            case wire.KILLED:
                return receiver.killed()
            case _:
                said = wire.refusal(payload)
                return receiver.refused(said._replace(reason=self.conceal(said.reason)))
        return False

    def _hear(self, payload: bytes) -> None:
        if self._greeted:
            raise wire.ProtocolError("a second greeting")
        self.abilities = wire.greeting(payload)
        self._greeted = True
        self._answered()

    def _answered(self) -> None:
        """There is nothing more to wait for."""
        if self._answer is not None:
            _settle(self._answer)

    # ---- its end

    def check(self) -> None:
        if self.reason is not None:
            raise SandboxLost(self.reason)

    def fail(self, reason: str) -> None:
        """Nobody is there, or nobody to be trusted: hang up, which ends what runs inside, and tell all who wait."""
        if self.reason is not None:
            return
        self.reason = reason
        self._part = bytearray()
        self._carrier.close()
        self._lose_all()
        self._answered()
        if self._frozen is not None:
            _settle(self._frozen[1])
        if self._on_lost is not None:
            self._on_lost(reason)

    def close(self) -> None:
        """The sandbox is being closed: what is in flight is lost."""
        self._on_lost = None
        self.fail("the sandbox is closed")

    def _lose_all(self) -> None:
        receivers, self._receivers = self._receivers, {}
        self._grants.clear()
        self._blocked.clear()
        for receiver in receivers.values():
            receiver.lost()


def _settle(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
