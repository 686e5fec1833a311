"""A guest that was taken over, played against our side: it costs its own sandbox and bounded memory, and is told as lost."""

import asyncio
import random
import struct
import tracemalloc
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from excise.action import Exec, List, Observation, Read, Shell, Stat, Write
from excise.errors import ExciseError, SandboxLost
from excise.guest import encode, exchange, wire
from excise.guest.handle import GuestHandle
from excise.sandbox import Sandbox
from excise.spec import Spec
from guest_peer import Peer, met

MEBIBYTE = 1 << 20
SEEDS = range(40)
# Two windows that nobody reads, one frame in part, what is received at once; and Python's own for the objects around them.
BOUND_BYTES = 4 * MEBIBYTE

Attack = Callable[[Peer, int], Awaitable[None]]


def attacked(attack: Attack, action: Exec | Shell | Read | List | Stat | Write | None = None) -> str:
    """Run `action` against a guest that answers with `attack`; a second sandbox beside it works on. Why the first is lost."""

    async def whole() -> str:
        hostile, peer = met()
        beside, other = met()
        try:
            await other.greet()
            await peer.greet()
            run = asyncio.create_task(hostile.run(action or Exec(("true",))))
            heard = await peer.hear()
            said = asyncio.create_task(_ignoring_hangup(attack(peer, heard.id)))
            with pytest.raises(SandboxLost) as lost:
                await asyncio.wait_for(run, 30)
            await said
            with pytest.raises(SandboxLost):
                await hostile.run(Exec(("true",)))
            assert (await _answered(beside, other)).stdout == b"fine"
            return str(lost.value)
        finally:
            for end in (peer, other):
                end.close()
            for handle in (hostile, beside):
                await handle.close()

    return asyncio.run(whole())


async def _ignoring_hangup(attack: Awaitable[None]) -> None:
    try:
        await attack
    except ConnectionError:
        return


async def _answered(handle: GuestHandle, peer: Peer) -> Observation:
    run = asyncio.create_task(handle.run(Exec(("true",))))
    heard = await peer.hear_a(wire.RUN)
    await peer.say(peer.output(heard.id, b"fine") + peer.ended(heard.id))
    return await asyncio.wait_for(run, 60)


def grown(scenario: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """The most memory that Python held during `scenario`, beyond what it held before."""

    async def measured() -> int:
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            await scenario()
            return tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()

    return asyncio.run(measured())


# ---- single frames that no guest sends


def raw(kind: int, action: int, *, length: int = 0, epoch: int = 1, flags: int = 0, zero: int = 0) -> bytes:
    return struct.pack("<IIIBBH", length, action, epoch, kind, flags, zero)


FRAMES: dict[str, Callable[[Peer, int], bytes]] = {
    "a length of 4 GiB": lambda _, n: raw(wire.OUTPUT, n, length=0xFFFFFFFF, flags=1),
    "one byte more than a frame holds": lambda _, n: raw(wire.OUTPUT, n, length=wire.MAX_PAYLOAD + 1, flags=1),
    "output without bytes": lambda peer, n: peer.output(n, b""),
    "output of a third stream": lambda peer, n: peer.output(n, b"x", 3),
    "an unknown type": lambda _, n: raw(99, n),
    "a request": lambda _, n: raw(wire.RUN, n),
    "a field that must be zero": lambda _, n: raw(wire.STARTED, n, zero=1),
    "an action that was never begun": lambda peer, n: peer.ended(n + 1),
    "an action of long ago": lambda peer, n: peer.ended(n) + peer.ended(n),
    "output for an action of long ago": lambda peer, n: peer.ended(n) + peer.output(n, b"x"),
    "the action 0": lambda peer, _: peer.ended(0),
    "a kill nobody asked for": lambda peer, n: peer.frame(wire.KILLED, n),
    "a greeting in the middle": lambda peer, _: peer.frame(wire.HELLO, 0, wire.number(wire.TAG_VERSION, 1)),
    "an end of no known kind": lambda peer, n: peer.ended(n, 77),
    "a signal of no known number": lambda peer, n: peer.ended(n, 1, signal=-5),
    "an error of no known number": lambda peer, n: peer.ended(n, 0, error=1 << 30),
    "a refusal that is cut short": lambda peer, n: peer.frame(wire.REFUSED, n, b"\3"),
    "a refusal whose field is longer than it": lambda peer, n: peer.frame(wire.REFUSED, n, struct.pack("<HHI", 3, 0, 1 << 31)),
    "credit for a stream": lambda peer, n: peer.frame(wire.CREDIT, n, struct.pack("<I", 1), 1),
}


@pytest.mark.parametrize("what", FRAMES)
def test_a_frame_that_no_guest_sends_loses_that_sandbox(what: str) -> None:
    async def attack(peer: Peer, id: int) -> None:
        await peer.say(FRAMES[what](peer, id))
        await peer.gone()

    if "long ago" in what:  # the action itself is answered; it is the next one that is lost
        after_an_answer(FRAMES[what])
    else:
        assert "the guest broke the protocol" in attacked(attack)


def after_an_answer(frames: Callable[[Peer, int], bytes]) -> None:
    async def scenario() -> None:
        handle, peer = met()
        await peer.greet()
        run = asyncio.create_task(handle.run(Exec(("true",))))
        await peer.say(frames(peer, (await peer.hear()).id))
        assert (await run).ok
        await peer.gone()
        with pytest.raises(SandboxLost, match="the guest broke the protocol"):
            await handle.run(Exec(("true",)))
        peer.close()
        await handle.close()

    asyncio.run(scenario())


def test_an_answer_before_the_greeting_is_no_answer() -> None:
    async def scenario() -> None:
        handle, peer = met()
        run = asyncio.create_task(handle.run(Exec(("true",))))
        await peer.hear_a(wire.HELLO)
        await peer.say(peer.ended((await peer.hear_a(wire.RUN)).id))
        with pytest.raises(SandboxLost, match="broke the protocol"):
            await run
        peer.close()
        await handle.close()

    asyncio.run(scenario())


def test_a_guest_of_another_version_is_not_talked_to() -> None:
    async def scenario() -> None:
        handle, peer = met()
        run = asyncio.create_task(handle.run(Exec(("true",))))
        await peer.greet(version=2)
        with pytest.raises(SandboxLost, match="version 2"):
            await run
        peer.close()
        await handle.close()

    asyncio.run(scenario())


def test_answers_of_another_life_are_nobodys_however_many() -> None:
    async def scenario() -> None:
        handle, peer = met()
        await peer.greet(epoch=None)
        peer.epoch = 7
        flood = (peer.output(1, bytes(60_000)) + peer.ended(1)) * 16
        for _ in range(64):
            await peer.say(flood)
        peer.epoch = 1
        assert (await _answered(handle, peer)).stdout == b"fine"
        peer.close()
        await handle.close()

    assert grown(scenario) < BOUND_BYTES


# ---- answers that lie about their contents


LIES: dict[str, tuple[List | Stat | Read, bytes]] = {
    "entries that are cut short": (List("d"), b"\1\2\3"),
    "an entry whose name is longer than all": (List("d"), struct.pack("<IIB3sIIIQq", 1 << 31, 0, 1, bytes(3), 0, 0, 0, 0, 0)),
    "an entry of no kind": (Stat("f"), struct.pack("<IIB3sIIIQq", 1, 0, 9, bytes(3), 0, 0, 0, 0, 0) + b"f"),
    "more than was asked for": (Read("f", 0, 5), b"123456"),
    "output of what has none": (Stat("f"), bytes(70_000)),
}


@pytest.mark.parametrize("what", LIES)
def test_an_answer_that_lies_loses_that_sandbox(what: str) -> None:
    action, answer = LIES[what]

    async def attack(peer: Peer, id: int) -> None:
        await peer.say(peer.output(id, answer) + peer.ended(id))
        await peer.gone()

    assert "the guest broke the protocol" in attacked(attack, action)


# ---- streams


def test_a_stream_beyond_its_credit_loses_that_sandbox() -> None:
    async def attack(peer: Peer, id: int) -> None:
        while True:
            await peer.say(peer.output(id, bytes(65536), 2))

    started(attack, "more than it had credit for")


def started(attack: Attack, reason: str, bound_bytes: int = BOUND_BYTES) -> None:
    """The same against a started process that nobody reads; memory is measured."""

    async def scenario() -> None:
        handle, peer = met()
        await peer.greet()
        starting = asyncio.create_task(handle.start(Exec(("yes",))))
        heard = await peer.hear()
        await peer.say(peer.frame(wire.STARTED, heard.id))
        process = await starting
        await _ignoring_hangup(attack(peer, heard.id))
        with pytest.raises(SandboxLost, match=reason):
            await asyncio.wait_for(process.wait(), 30)
        peer.close()
        await handle.close()

    assert grown(scenario) < bound_bytes


def test_a_window_in_single_bytes_costs_no_more_than_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "WINDOW", 1 << 15)

    async def attack(peer: Peer, id: int) -> None:
        single = (peer.output(id, b"x") + peer.output(id, b"y", 2)) * 1024
        for _ in range(wire.WINDOW // 1024 + 1):
            await peer.say(single)
        await peer.gone()

    started(attack, "more than it had credit for", bound_bytes=MEBIBYTE)


def test_an_endless_stream_is_consumed_in_bounded_memory_although_the_guest_reads_nothing() -> None:
    async def scenario() -> None:
        handle, peer = met()
        await peer.greet()
        run = asyncio.create_task(handle.run(Exec(("yes",))))
        heard = await peer.hear()
        piece = peer.output(heard.id, bytes(128 * 1024))
        for _ in range(2048):  # 256 MiB, each piece within the credit that was given for the ones before it
            await peer.say(piece)
        await peer.say(peer.ended(heard.id))
        seen = await asyncio.wait_for(run, 30)
        assert len(seen.stdout) + seen.dropped_bytes == 2048 * 128 * 1024
        peer.close()
        await handle.close()

    # What is kept is the caller's: a head of 1 MiB and a tail of 1 MiB, twice that while it is trimmed, and a copy at the end.
    assert grown(scenario) < BOUND_BYTES + 7 * MEBIBYTE


def test_a_file_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "LONGEST_READ_BYTES", MEBIBYTE)

    async def attack(peer: Peer, id: int) -> None:
        while True:
            await peer.say(peer.output(id, bytes(65536)))

    assert "more than were asked for" in attacked(attack, Read("f"))


def test_endless_credit_for_stdin_costs_nothing() -> None:
    async def scenario() -> None:
        handle, peer = met()
        await peer.greet()
        starting = asyncio.create_task(handle.start(Exec(("cat",))))
        heard = await peer.hear()
        await peer.say(peer.frame(wire.STARTED, heard.id))
        process = await starting
        credit = peer.frame(wire.CREDIT, heard.id, b"\xff\xff\xff\xff") * 1000
        for _ in range(20):
            await peer.say(credit)
        # It takes nothing, whatever it promised: the bytes stay the caller's, and he waits.
        data = bytes(64 * MEBIBYTE)
        before = tracemalloc.get_traced_memory()[0]
        writing = asyncio.create_task(process.write(data))
        await asyncio.sleep(0.05)
        assert not writing.done()
        assert tracemalloc.get_traced_memory()[0] - before < BOUND_BYTES
        await handle.close()
        with pytest.raises(BrokenPipeError):
            await writing
        peer.close()

    assert grown(scenario) < BOUND_BYTES + 64 * MEBIBYTE


# ---- silence and half words


def test_a_guest_that_does_not_answer_a_kill_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "KILL_S", 0.05)

    async def scenario() -> None:
        handle, peer = met()
        await peer.greet()
        run = asyncio.create_task(handle.run(Exec(("x",))))
        await peer.hear()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(run, 60)
        with pytest.raises(SandboxLost, match="did not answer a kill"):
            await handle.run(Exec(("x",)))
        await peer.gone()  # which is what ends everything inside
        peer.close()
        await handle.close()

    asyncio.run(scenario())


def test_a_guest_that_keeps_no_timeout_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "KILL_S", 0.05)
    monkeypatch.setattr(exchange, "BACKSTOP_S", 0.05)

    async def silence(peer: Peer, _: int) -> None:
        await peer.gone()

    assert "did not answer a kill" in attacked(silence, Exec(("x",), timeout_s=0.01))


def test_the_sandboxs_own_deadline_ends_a_silent_guest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the action has no timeout of its own: create and ready have deadlines, and so has every other verb."""
    monkeypatch.setattr(exchange, "KILL_S", 0.05)

    class Silent:
        address = "silent"

        async def create(self, *_: object, **__: object) -> GuestHandle:
            self.handle, self.peer = met()
            return self.handle

    async def scenario() -> None:
        substrate = Silent()
        with pytest.raises(ExciseError, match="did not answer in"):
            await Sandbox(substrate, Spec(), wait_s=0.2).open()  # pyright: ignore[reportArgumentType]
        await substrate.peer.gone()
        substrate.peer.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("cut", [1, 15, 16, 17, 30, 55])
def test_a_guest_that_goes_in_the_middle_of_a_frame_is_lost(cut: int) -> None:
    async def attack(peer: Peer, id: int) -> None:
        await peer.say(peer.ended(id)[:cut])
        peer.close()

    assert "the guest is gone" in attacked(attack)


# ---- anything at all


@pytest.mark.parametrize("seed", SEEDS)
def test_random_bytes_are_a_lost_sandbox(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - the same frames each time

    async def attack(peer: Peer, _: int) -> None:
        for _ in range(rng.randrange(1, 50)):
            await peer.say(rng.randbytes(rng.randrange(1, 100_000)))
        peer.close()

    attacked(attack)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_frames_are_an_answer_or_a_lost_sandbox_in_bounded_memory(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - the same frames each time

    def scribble(peer: Peer, ids: list[int]) -> bytes:
        kind = rng.choice([wire.HELLO, *range(30, 38), wire.CREDIT, wire.OUTPUT, wire.OUTPUT, wire.ENDED, rng.randrange(256)])
        number = rng.choice([*ids, *ids, 0, rng.randrange(1 << 32)])
        if kind == wire.OUTPUT:
            return peer.output(number, rng.randbytes(rng.choice([1, 100, 65536])), rng.choice([1, 1, 2, 3]))
        if kind == wire.ENDED:
            return peer.ended(number, rng.randrange(9), code=rng.randrange(-5, 300), flags=rng.randrange(32))
        if kind == wire.CREDIT:
            return peer.frame(kind, number, rng.randbytes(4))
        return peer.frame(kind, number, rng.randbytes(rng.choice([0, 0, 4, 40])), rng.choice([0, 0, 1]))

    async def scenario() -> None:
        handle, peer = met()
        await peer.greet()
        actions = [Exec(("a",)), Read("f"), List("d"), Stat("f"), Write("f", bytes(1000)), Shell("x", session="s")]
        runs = [asyncio.create_task(handle.run(action)) for action in actions]
        starting = asyncio.create_task(handle.start(Exec(("b",))))
        ids: list[int] = []
        while len(ids) < len(runs) + 1:
            heard = await peer.hear()
            ids += [heard.id] if heard.type in (wire.RUN, wire.FILE) else []
        try:
            for _ in range(300):
                await peer.say(scribble(peer, ids))
        except ConnectionError:
            pass
        peer.close()
        await asyncio.wait({*runs, starting}, timeout=30)
        for task in (*runs, starting):
            assert task.exception() is None or isinstance(task.exception(), ExciseError)
        with pytest.raises(SandboxLost):
            await handle.run(Exec(("x",)))
        await handle.close()

    assert grown(scenario) < BOUND_BYTES * 4
