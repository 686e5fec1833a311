"""Asking a guest whether it is there, and giving it another spec, with the test at the other end of the link."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from excise.action import Exec, Shell
from excise.errors import CreateError, SandboxLost, SpecError
from excise.guest import wire
from excise.guest.handle import GuestHandle
from excise.spec import Secret, Spec, Step
from excise.substrate import Capabilities
from guest_peer import Peer, met

ADOPTS = Capabilities(adopts=frozenset({"secrets"}), stream=True, background=True)


def played(scenario: Callable[[GuestHandle, Peer], Awaitable[None]], **terms: Any) -> None:
    async def whole() -> None:
        handle, peer = met(capabilities=ADOPTS, **terms)
        try:
            await peer.greet()
            await asyncio.wait_for(scenario(handle, peer), 20)
        finally:
            peer.close()
            await handle.close()

    asyncio.run(whole())


async def answered(peer: Peer, *, code: int = 0, output: bytes = b"") -> None:
    """The next command ends so."""
    heard = await peer.hear_a(wire.RUN)
    await peer.say((peer.output(heard.id, output) if output else b"") + peer.ended(heard.id, code=code))


def test_whether_it_lives_is_one_frame_out_and_one_back() -> None:
    async def scenario(handle: GuestHandle, peer: Peer) -> None:
        asked = asyncio.create_task(handle.alive())
        heard = await peer.hear_a(wire.KILL)
        assert not asked.done()
        await peer.say(peer.frame(wire.KILLED, heard.id))
        await asked
        running = asyncio.create_task(handle.run(Exec(("true",))))
        await answered(peer)
        assert (await running).ok

    played(scenario)


def test_who_gives_up_asking_leaves_the_link_as_it_was_also_for_a_late_answer() -> None:
    async def scenario(handle: GuestHandle, peer: Peer) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await handle.alive()
        heard = await peer.hear_a(wire.KILL)
        await peer.say(peer.frame(wire.KILLED, heard.id))
        running = asyncio.create_task(handle.run(Exec(("true",))))
        await answered(peer)
        assert (await running).ok

    played(scenario)


def test_one_that_hangs_up_is_lost_in_time() -> None:
    async def scenario(handle: GuestHandle, peer: Peer) -> None:
        asked = asyncio.create_task(handle.alive())
        await peer.hear_a(wire.KILL)
        peer.close()
        with pytest.raises(SandboxLost, match="the guest is gone"):
            await asked
        with pytest.raises(SandboxLost):
            await handle.alive()
        with pytest.raises(SandboxLost):
            await handle.adopt(Spec())

    played(scenario)


@pytest.mark.parametrize("kind", [wire.STARTED, wire.ENDED, wire.REFUSED, wire.OUTPUT, wire.CREDIT])
def test_anything_else_than_the_answer_is_no_guest_of_ours(kind: int) -> None:
    async def scenario(handle: GuestHandle, peer: Peer) -> None:
        asked = asyncio.create_task(handle.alive())
        heard = await peer.hear_a(wire.KILL)
        said = {
            wire.ENDED: peer.ended(heard.id),
            wire.OUTPUT: peer.output(heard.id, b"x"),
            wire.CREDIT: peer.frame(wire.CREDIT, heard.id, bytes(4)),
        }
        await peer.say(said.get(kind, peer.frame(kind, heard.id)))
        with pytest.raises(SandboxLost, match="broke the protocol"):
            await asked

    played(scenario)


def test_other_variables_begin_another_life_and_the_same_ones_do_not() -> None:
    async def scenario(handle: GuestHandle, peer: Peer) -> None:
        await handle.adopt(Spec(labels={"a": "b"}))
        adopting = asyncio.create_task(handle.adopt(Spec(secrets={"KEY": Secret("hidden")})))
        heard = await peer.greet()
        assert (heard.epoch, heard.values(wire.TAG_ENV)) == (2, [b"KEY=hidden"])
        await adopting
        again = asyncio.create_task(handle.adopt(Spec()))
        assert (await peer.greet()).values(wire.TAG_ENV) == []
        await again

    played(scenario)


def test_what_was_ready_runs_no_first_command_again_but_the_steps_that_are_left() -> None:
    async def scenario(handle: GuestHandle, peer: Peer) -> None:
        getting = asyncio.create_task(handle.ready())
        await answered(peer)  # the first command
        await getting
        await handle.adopt(Spec())
        await handle.ready()  # nothing is said: else the next frame were another
        await handle.adopt(Spec(steps=(Step("one", (Shell("step"),)),)))
        getting = asyncio.create_task(handle.ready())
        heard = await peer.hear_a(wire.RUN)
        assert b"step" in heard.values(wire.TAG_ARG)
        await peer.say(peer.ended(heard.id))
        await getting
        await handle.ready()

    played(scenario)


def test_a_failed_step_tells_no_adopted_secret() -> None:
    async def scenario(handle: GuestHandle, peer: Peer) -> None:
        spec = Spec(secrets={"KEY": Secret("hidden")}, steps=(Step("one", (Shell("step"),)),))
        adopting = asyncio.create_task(handle.adopt(spec))
        await peer.greet()
        await adopting
        getting = asyncio.create_task(handle.ready())
        await answered(peer)  # it was never ready: the first command is due
        await answered(peer, code=1, output=b"it is hidden")
        with pytest.raises(CreateError, match=r"it is \*\*\*"):
            await getting

    played(scenario)


def test_a_spec_that_is_refused_leaves_it_as_it_was() -> None:
    async def scenario(handle: GuestHandle, peer: Peer) -> None:
        for spec in (Spec(env={"A": "1"}), Spec(secrets={"KEY": Secret("a\0b")})):
            with pytest.raises(SpecError):
                await handle.adopt(spec)
        running = asyncio.create_task(handle.run(Exec(("true",))))
        await answered(peer)
        assert (await running).ok
        assert handle.base == {}

    played(scenario)


def test_given_up_half_way_it_is_lost() -> None:
    async def scenario(handle: GuestHandle, peer: Peer) -> None:
        adopting = asyncio.create_task(handle.adopt(Spec(secrets={"KEY": Secret("hidden")})))
        await peer.hear_a(wire.HELLO)
        adopting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await adopting
        with pytest.raises(SandboxLost, match="half-way"):
            await handle.run(Exec(("true",)))

    played(scenario)
