"""A handle over a link whose other end the test plays: what is asked, what is answered, what is done about it."""

import asyncio
import errno
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from excise.action import Batch, End, Exec, Exit, Keep, List, MakeDir, Move, Output, Pty, Read, Remove, Shell, Stat, Write
from excise.errors import SandboxLost, SpecError, Unsupported
from excise.guest import encode, wire
from excise.guest.handle import GuestHandle
from excise.spec import Secret, Spec
from excise.substrate import Capabilities
from guest_peer import Peer, met

MEBIBYTE = 1 << 20


def played(scenario: Callable[[GuestHandle, Peer], Awaitable[None]], **terms: Any) -> None:
    """A greeted guest and its handle; at the end both are closed and nothing is left to happen."""

    async def whole() -> None:
        handle, peer = met(**terms)
        try:
            await peer.greet()
            await asyncio.wait_for(scenario(handle, peer), 20)
        finally:
            peer.close()
            await handle.close()

    asyncio.run(whole())


def test_the_greeting_carries_what_actions_have_anyway() -> None:
    async def scenario() -> None:
        spec = Spec(env={"A": "spec"}, secrets={"KEY": Secret("s")})
        handle, peer = met(spec=spec, image_env={"A": "image", "B": "image"}, cwd="/home/me", user="me")
        heard = await peer.greet()
        assert heard.epoch == 1
        assert heard.values(wire.TAG_VERSION) == [(1).to_bytes(8, "little")]
        assert sorted(heard.values(wire.TAG_ENV)) == [b"A=spec", b"B=image", b"KEY=s"]
        assert (heard.values(wire.TAG_CWD), heard.values(wire.TAG_USER)) == ([b"/home/me"], [b"me"])
        await handle.close()
        peer.close()

    asyncio.run(scenario())


def test_a_command_is_one_frame_out_and_its_observation_comes_from_what_comes_back() -> None:
    async def scenario(handle: GuestHandle, peer: Peer) -> None:
        run = asyncio.create_task(handle.run(Exec(("echo", "hi"), cwd="sub", env={"A": "1"}, user="me", timeout_s=2.5)))
        heard = await peer.hear_a(wire.RUN)
        assert heard.flags == 0
        assert heard.fields() == [
            (wire.TAG_ARG, b"echo"),
            (wire.TAG_ARG, b"hi"),
            (wire.TAG_ENV, b"A=1"),
            (wire.TAG_CWD, b"sub"),
            (wire.TAG_USER, b"me"),
            (wire.TAG_TIMEOUT_NS, (2_500_000_000).to_bytes(8, "little")),
        ]
        out = peer.output(heard.id, b"hi\n") + peer.output(heard.id, b"oh\n", 2) + peer.ended(heard.id, code=3, flags=4 | 8 | 1)
        await peer.say(out)
        seen = await run
        assert (seen.end, seen.exit_code, seen.stdout, seen.stderr, seen.still_running) == (
            End.EXITED,
            3,
            b"hi\n",
            b"oh\n",
            True,
        )
        assert (seen.guest_ns, seen.cpu_ns, seen.max_rss_bytes) == (1000, 2000, 3000)

    played(scenario)


def test_frames_arrive_in_any_pieces() -> None:
    async def scenario(handle: GuestHandle, peer: Peer) -> None:
        run = asyncio.create_task(handle.run(Exec(("x",))))
        heard = await peer.hear()
        for byte in peer.output(heard.id, b"hi\n") + peer.ended(heard.id):
            await peer.say(bytes([byte]))
            await asyncio.sleep(0)
        assert (await run).stdout == b"hi\n"

    played(scenario)


@pytest.mark.parametrize(
    ("end", "terms", "wanted"),
    [
        (wire.END_SIGNALED, {"signal": 11, "flags": 0}, (End.SIGNALED, None, 11)),
        (wire.END_TIMED_OUT, {"signal": 9, "flags": 0}, (End.TIMED_OUT, None, None)),
        (wire.END_OUT_OF_MEMORY, {"signal": 9, "flags": 0}, (End.OUT_OF_MEMORY, None, None)),
        (wire.END_OUT_OF_PIDS, {"code": 2, "flags": 4}, (End.OUT_OF_PIDS, 2, None)),
        (wire.END_KILLED, {"signal": 9, "flags": 0}, (End.SIGNALED, None, 9)),
    ],
)
def test_ends_are_told_apart(end: int, terms: dict[str, int], wanted: tuple[End, int | None, int | None]) -> None:
    async def scenario(handle: GuestHandle, peer: Peer) -> None:
        run = asyncio.create_task(handle.run(Exec(("x",))))
        heard = await peer.hear()
        await peer.say(peer.ended(heard.id, end, **terms))
        seen = await run
        assert (seen.end, seen.exit_code, seen.signal) == wanted

    played(scenario)


def test_stdin_goes_along_and_what_is_beyond_the_window_waits_for_credit() -> None:
    async def scenario(handle: GuestHandle, peer: Peer) -> None:
        data = bytes(range(256)) * 2048  # two windows
        run = asyncio.create_task(handle.run(Exec(("cat",), stdin=data + b"!")))
        heard = await peer.hear_a(wire.RUN)
        assert heard.flags == wire.FLAG_STDIN
        got = (await peer.hear_a(wire.DATA)).payload
        assert len(got) == wire.WINDOW
        await peer.say(peer.frame(wire.CREDIT, heard.id, struct.pack("<I", wire.WINDOW)))
        got += (await peer.hear_a(wire.DATA)).payload
        await peer.say(peer.frame(wire.CREDIT, heard.id, struct.pack("<I", 100)))
        got += (await peer.hear_a(wire.DATA)).payload
        assert got == data + b"!"
        await peer.hear_a(wire.EOF)
        await peer.say(peer.ended(heard.id))
        assert (await run).ok

    played(scenario)


def test_credit_is_given_as_output_is_consumed_and_the_middle_is_dropped() -> None:
    async def scenario(handle: GuestHandle, peer: Peer) -> None:
        run = asyncio.create_task(handle.run(Exec(("yes",), keep=Keep(2, 3))))
        heard = await peer.hear()
        room, sent = wire.WINDOW, 0
        while sent < 4 * MEBIBYTE:
            if room < 65536:
                credit = await peer.hear_a(wire.CREDIT)
                assert (credit.id, credit.flags) == (heard.id, 1)
                room += struct.unpack("<I", credit.payload)[0]
            await peer.say(peer.output(heard.id, b"y" * 65536))
            room, sent = room - 65536, sent + 65536
        await peer.say(peer.output(heard.id, b"end") + peer.ended(heard.id))
        seen = await run
        assert (seen.stdout, seen.dropped_bytes) == (b"yyend", sent - 2)

    played(scenario)


def test_credit_for_a_guest_that_does_not_read_does_not_pile_up() -> None:
    async def scenario(handle: GuestHandle, peer: Peer) -> None:
        runs = [asyncio.create_task(handle.run(Exec(("x",), stdin=bytes(wire.WINDOW)))) for _ in range(8)]
        await asyncio.sleep(0)
        carrier = handle.link._carrier
        waiting_bytes = carrier.waiting_bytes
        assert waiting_bytes > 0
        for _ in range(10):
            await peer.say(peer.output(1, bytes(wire.WINDOW // 2)))
        beside = asyncio.create_task(peer.say(peer.ended(8)))
        assert (await runs[7]).ok  # so what was said before it has been heard
        await beside
        assert carrier.waiting_bytes == waiting_bytes
        given: list[bytes] = []
        while not given:
            heard = await peer.hear()
            given += [heard.payload] if heard.type == wire.CREDIT else []
        assert given == [struct.pack("<I", 10 * wire.WINDOW // 2)]
        await peer.say(b"".join(peer.ended(number) for number in range(1, 8)))
        await asyncio.gather(*runs)

    played(scenario)


def test_a_started_process_is_read_only_as_its_events_are() -> None:
    async def scenario(handle: GuestHandle, peer: Peer) -> None:
        starting = asyncio.create_task(handle.start(Exec(("yes",))))
        heard = await peer.hear()
        assert heard.flags == wire.FLAG_STDIN | wire.FLAG_STARTED
        await peer.say(peer.frame(wire.STARTED, heard.id))
        process = await starting
        await peer.say(peer.output(heard.id, b"a" * wire.WINDOW) + peer.output(heard.id, b"e", 2))
        other = asyncio.create_task(handle.run(Exec(("true",))))  # what comes next is not credit: nobody read
        beside = await peer.hear_a(wire.RUN)
        await peer.say(peer.ended(beside.id))
        await other
        events = process.events()
        assert await anext(events) == Output("stdout", b"a" * wire.WINDOW)
        assert (await peer.hear_a(wire.CREDIT)).payload == struct.pack("<I", wire.WINDOW)
        assert await anext(events) == Output("stderr", b"e")
        await peer.say(peer.ended(heard.id, code=4))
        last = await anext(events)
        assert isinstance(last, Exit)
        assert (last.observation.exit_code, last.observation.stdout) == (4, b"")
        assert (await process.wait()).exit_code == 4

    played(scenario)


def test_a_started_process_is_written_resized_and_signalled() -> None:
    async def scenario(handle: GuestHandle, peer: Peer) -> None:
        starting = asyncio.create_task(handle.start(Exec(("sh",), pty=Pty(30, 100))))
        heard = await peer.hear()
        assert heard.flags & (wire.FLAG_PTY | wire.FLAG_STDIN) == wire.FLAG_PTY | wire.FLAG_STDIN
        assert heard.values(wire.TAG_ROWS) == [(30).to_bytes(8, "little")]
        assert heard.values(wire.TAG_ENV) == [b"TERM=xterm"]
        await peer.say(peer.frame(wire.STARTED, heard.id))
        process = await starting
        await process.write(b"ls\n")
        assert (await peer.hear_a(wire.DATA)).payload == b"ls\n"
        await process.resize(40, 120)
        assert (await peer.hear_a(wire.RESIZE)).payload == struct.pack("<II", 40, 120)
        await process.signal(15)
        assert (await peer.hear_a(wire.SIGNAL)).payload == struct.pack("<I", 15)
        await process.close_stdin()
        assert (await peer.hear_a(wire.DATA)).payload == b"\x04"
        await peer.say(peer.ended(heard.id))
        assert (await process.wait()).ok
        with pytest.raises(BrokenPipeError):
            await process.write(b"more")

    played(scenario)


def test_a_write_waits_until_the_guest_has_room_and_ends_with_the_process() -> None:
    async def scenario(handle: GuestHandle, peer: Peer) -> None:
        starting = asyncio.create_task(handle.start(Exec(("cat",))))
        heard = await peer.hear()
        await peer.say(peer.frame(wire.STARTED, heard.id))
        process = await starting
        writing = asyncio.create_task(process.write(bytes(wire.WINDOW + 1)))
        await peer.hear_a(wire.DATA)
        await asyncio.sleep(0)
        assert not writing.done()
        await peer.say(peer.ended(heard.id))
        with pytest.raises(BrokenPipeError):
            await writing

    played(scenario)


def test_a_cancelled_action_is_dead_before_the_cancellation_returns() -> None:
    async def scenario(handle: GuestHandle, peer: Peer) -> None:
        run = asyncio.create_task(handle.run(Exec(("sleep", "1000"))))
        heard = await peer.hear()
        run.cancel()
        kill = await peer.hear_a(wire.KILL)
        assert kill.id == heard.id
        await asyncio.sleep(0)
        assert not run.done()
        await peer.say(peer.ended(heard.id, wire.END_KILLED, flags=0) + peer.frame(wire.KILLED, heard.id))
        with pytest.raises(asyncio.CancelledError):
            await run

    played(scenario)


def test_a_kill_that_is_answered_before_the_end_ends_it_all_the_same() -> None:
    """A guest that owes the output of a stalled action sends its end later: nobody waits for it."""

    async def scenario(handle: GuestHandle, peer: Peer) -> None:
        starting = asyncio.create_task(handle.start(Exec(("yes",))))
        heard = await peer.hear()
        await peer.say(peer.frame(wire.STARTED, heard.id))
        process = await starting
        killing = asyncio.create_task(process.kill())
        await peer.hear_a(wire.KILL)
        await peer.say(peer.frame(wire.KILLED, heard.id))
        await killing
        seen = await process.wait()
        assert (seen.end, seen.signal, seen.exit_code) == (End.SIGNALED, 9, None)
        await peer.say(peer.output(heard.id, b"late") + peer.ended(heard.id, wire.END_KILLED, flags=0))
        run = asyncio.create_task(handle.run(Exec(("true",))))
        await peer.say(peer.ended((await peer.hear_a(wire.RUN)).id))
        assert (await run).ok

    played(scenario)


def test_what_an_ended_action_left_running_can_still_be_killed() -> None:
    async def scenario(handle: GuestHandle, peer: Peer) -> None:
        starting = asyncio.create_task(handle.start(Exec(("server",))))
        heard = await peer.hear()
        await peer.say(peer.frame(wire.STARTED, heard.id) + peer.ended(heard.id, flags=wire.ENDED_STILL_RUNNING | 4))
        process = await starting
        assert (await process.wait()).still_running
        killing = asyncio.create_task(process.kill())
        await peer.hear_a(wire.KILL)
        await peer.say(peer.frame(wire.KILLED, heard.id))
        await killing
        await process.kill()  # of what is dead already: nothing is sent

    played(scenario)


def test_a_batch_is_one_send_of_chained_requests() -> None:
    async def scenario(handle: GuestHandle, peer: Peer) -> None:
        batch = Batch((Write("f", b"data"), Exec(("false",)), Shell("echo never")))
        run = asyncio.create_task(handle.run(batch))
        first = await peer.hear_a(wire.FILE)
        assert (await peer.hear_a(wire.DATA)).payload == b"data"
        await peer.hear_a(wire.EOF)
        second, third = await peer.hear_a(wire.RUN), await peer.hear_a(wire.RUN)
        assert (second.id, third.id) == (first.id + 1, first.id + 2)
        assert (first.flags, second.flags, third.flags) == (wire.FLAG_STDIN, 48, 48)
        await peer.say(peer.ended(first.id) + peer.ended(second.id, code=1) + peer.ended(third.id, wire.END_SKIPPED, flags=0))
        seen = await run
        assert (len(seen.parts), seen.ok, seen.exit_code) == (2, False, 1)
        run = asyncio.create_task(handle.run(Batch((Exec(("a",)), Exec(("b",))), stop_on_failure=False)))
        first, second = await peer.hear(), await peer.hear()
        assert second.flags == wire.FLAG_CHAIN
        await peer.say(peer.ended(first.id, code=1) + peer.ended(second.id))
        assert [part.ok for part in (await run).parts] == [False, True]

    played(scenario)


def test_a_cancelled_batch_is_killed_from_its_end() -> None:
    async def scenario(handle: GuestHandle, peer: Peer) -> None:
        run = asyncio.create_task(handle.run(Batch((Exec(("sleep", "9")), Exec(("b",))))))
        first, second = await peer.hear(), await peer.hear()
        run.cancel()
        assert [(await peer.hear_a(wire.KILL)).id, (await peer.hear_a(wire.KILL)).id] == [second.id, first.id]
        for heard in (second, first):
            await peer.say(peer.ended(heard.id, wire.END_KILLED, flags=0) + peer.frame(wire.KILLED, heard.id))
        with pytest.raises(asyncio.CancelledError):
            await run

    played(scenario)


def test_file_actions_ask_what_they_mean() -> None:
    asked = {
        Write("p", b"", mode=0o600, append=True): (wire.FILE_WRITE, {wire.TAG_MODE: 0o600, wire.TAG_FLAG: 1}),
        Read("p", 5, 6): (wire.FILE_READ, {wire.TAG_OFFSET: 5, wire.TAG_LENGTH: 6}),
        List("p"): (wire.FILE_LIST, {}),
        Stat("p"): (wire.FILE_STAT, {}),
        Remove("p", recursive=True): (wire.FILE_REMOVE, {wire.TAG_FLAG: 1}),
        Remove("p"): (wire.FILE_REMOVE, {}),
        MakeDir("p"): (wire.FILE_MAKE_DIR, {wire.TAG_MODE: 0o755}),
    }
    for action, (operation, numbers) in asked.items():
        request, _ = encode.file(action)
        fields = dict(wire.fields(request.fields))
        assert fields.pop(wire.TAG_PATH) == b"p"
        assert {tag: int.from_bytes(value, "little") for tag, value in fields.items()} == {24: operation, **numbers}
    moving = dict(wire.fields(encode.file(Move("p", "q"))[0].fields))
    assert moving[wire.TAG_TARGET] == b"q"


def test_a_file_action_answers_with_bytes_entries_or_an_errno(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(handle: GuestHandle, peer: Peer) -> None:
        async def answered(action: Read | Stat, *frames: Callable[[int], bytes]) -> Any:
            run = asyncio.create_task(handle.run(action))
            heard = await peer.hear()
            await peer.say(b"".join(frame(heard.id) for frame in frames))
            return await run

        seen = await answered(Read("f"), lambda n: peer.output(n, b"data"), peer.ended)
        assert (seen.stdout, seen.ok) == (b"data", True)
        seen = await answered(Read("f"), lambda n: peer.ended(n, error=errno.ENOENT))
        assert (seen.errno, seen.ok, seen.exit_code) == (errno.ENOENT, False, 1)
        for end, number in (
            (wire.END_OUT_OF_PIDS, errno.EAGAIN),
            (wire.END_OUT_OF_DISK, errno.ENOSPC),
            (wire.END_SIGNALED, errno.EIO),
        ):
            seen = await answered(Read("f"), partial(peer.ended, end=end, flags=0))
            assert (seen.errno, seen.ok) == (number, False)  # a limit that struck is not taken for an empty file
        entry = struct.pack("<IIB3sIIIQq", 1, 0, 1, bytes(3), 0o644, 1, 2, 3, 4) + b"f"
        seen = await answered(Stat("f"), lambda n: peer.output(n, entry), peer.ended)
        assert (seen.files[0].name, seen.files[0].size_bytes) == ("f", 3)
        monkeypatch.setattr(encode, "LONGEST_READ_BYTES", 10)
        seen = await answered(Read("f"), lambda n: peer.output(n, bytes(11)), peer.ended)
        assert (seen.errno, seen.stdout) == (errno.EFBIG, b"")

    played(scenario)


def test_a_tar_goes_in_and_out_as_a_stream() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"one"
        yield b"two"

    async def scenario(handle: GuestHandle, peer: Peer) -> None:
        sending = asyncio.create_task(handle.upload("d", pieces()))
        heard = await peer.hear_a(wire.FILE)
        assert (await peer.hear_a(wire.DATA)).payload + (await peer.hear_a(wire.DATA)).payload == b"onetwo"
        await peer.hear_a(wire.EOF)
        await peer.say(peer.ended(heard.id, error=errno.EACCES))
        with pytest.raises(PermissionError):
            await sending
        download = handle.download("d")
        first = asyncio.ensure_future(anext(download))
        heard = await peer.hear_a(wire.FILE)
        await peer.say(peer.output(heard.id, b"tar"))
        assert await first == b"tar"
        rest = asyncio.ensure_future(anext(download))
        await peer.say(peer.ended(heard.id, error=errno.ENOENT))
        with pytest.raises(FileNotFoundError):
            await rest

    played(scenario)


def test_an_upload_whose_source_fails_is_killed_not_ended() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"half"
        raise RuntimeError("the disk is gone")

    async def scenario(handle: GuestHandle, peer: Peer) -> None:
        sending = asyncio.create_task(handle.upload("d", pieces()))
        heard = await peer.hear_a(wire.FILE)
        await peer.hear_a(wire.DATA)
        await peer.hear_a(wire.KILL)
        await peer.say(peer.ended(heard.id, wire.END_KILLED, flags=0) + peer.frame(wire.KILLED, heard.id))
        with pytest.raises(RuntimeError, match="the disk is gone"):
            await sending

    played(scenario)


def test_a_port_is_a_stream_both_ways() -> None:
    async def scenario(handle: GuestHandle, peer: Peer) -> None:
        connecting = asyncio.create_task(handle.connect(8080))
        heard = await peer.hear_a(wire.FILE)
        assert dict(heard.fields())[wire.TAG_PORT] == (8080).to_bytes(8, "little")
        await peer.say(peer.frame(wire.STARTED, heard.id) + peer.output(heard.id, b"hello"))
        connection = await connecting
        assert await connection.read() == b"hello"
        await connection.write(b"GET")
        assert (await peer.hear_a(wire.DATA)).payload == b"GET"
        await peer.say(peer.ended(heard.id))
        assert await connection.read() == b""
        await connection.close()
        connecting = asyncio.create_task(handle.connect(1))
        heard = await peer.hear_a(wire.FILE)
        await peer.say(peer.ended(heard.id, error=errno.ECONNREFUSED))
        with pytest.raises(ConnectionRefusedError):
            await connecting

    played(scenario)


def test_a_refusal_is_the_callers_to_mend_and_shows_no_secret() -> None:
    async def scenario(handle: GuestHandle, peer: Peer) -> None:
        run = asyncio.create_task(handle.run(Exec(("x",), user="nobody-knows")))
        heard = await peer.hear()
        await peer.say(peer.frame(wire.REFUSED, heard.id, wire.field(wire.TAG_MESSAGE, b"no user, but hush")))
        with pytest.raises(SpecError, match=r"no user, but \*\*\*"):
            await run

    played(scenario, spec=Spec(secrets={"KEY": Secret("hush")}))


def test_what_the_machine_could_not_start_is_no_mistake_of_the_callers_and_no_result() -> None:
    async def scenario(handle: GuestHandle, peer: Peer) -> None:
        run = asyncio.create_task(handle.run(Exec(("x",))))
        heard = await peer.hear()
        reason = wire.field(wire.TAG_MESSAGE, b"Resource temporarily unavailable") + wire.number(wire.TAG_ERRNO, errno.EAGAIN)
        await peer.say(peer.frame(wire.REFUSED, heard.id, reason))
        with pytest.raises(SandboxLost, match=r"could not start the action \(Resource temporarily unavailable\): `ulimit -a`"):
            await run

    played(scenario)


def test_what_is_not_declared_is_refused_before_it_is_sent() -> None:
    async def scenario(handle: GuestHandle, peer: Peer) -> None:
        for action in (Exec(("x",), user="u"), Exec(("x",), pty=Pty()), Shell("x", session="s")):
            with pytest.raises(Unsupported):
                await handle.run(action)
        for verb in (handle.start(Exec(("x",))), handle.connect(1), handle.snapshot(), handle.pause()):
            with pytest.raises(Unsupported):
                await verb
        run = asyncio.create_task(handle.run(Exec(("true",))))
        await peer.say(peer.ended((await peer.hear_a(wire.RUN)).id))
        await run

    played(scenario, capabilities=Capabilities())


def test_a_session_takes_a_script_and_nothing_beside_it() -> None:
    async def scenario(handle: GuestHandle, peer: Peer) -> None:
        with pytest.raises(SpecError, match="takes no cwd, env"):
            await handle.run(Shell("x", session="main", cwd="/", env={"A": "1"}))
        run = asyncio.create_task(handle.run(Shell("cd /", session="main", merge=True)))
        heard = await peer.hear()
        assert heard.fields() == [(wire.TAG_SESSION, b"main"), (wire.TAG_SCRIPT, b"cd /")]
        assert heard.flags == wire.FLAG_MERGE
        await peer.say(peer.ended(heard.id, flags=4 | wire.ENDED_SESSION_REPLACED))
        assert (await run).session_replaced

    played(scenario)


# ---- its end


def test_a_guest_that_goes_takes_its_actions_with_it() -> None:
    async def scenario(handle: GuestHandle, peer: Peer) -> None:
        run = asyncio.create_task(handle.run(Exec(("x",))))
        await peer.hear()
        peer.close()
        with pytest.raises(SandboxLost, match="the guest is gone: it closed its connection"):
            await run
        with pytest.raises(SandboxLost):
            await handle.run(Exec(("x",)))

    played(scenario)


def test_closing_loses_what_runs_and_removes_the_sandbox_once() -> None:
    async def scenario() -> None:
        removed: list[int] = []
        handle, peer = met(on_close=lambda: removed.append(1))
        await peer.greet()
        run = asyncio.create_task(handle.run(Exec(("x",))))
        await peer.hear()
        await asyncio.gather(handle.close(), handle.close())
        with pytest.raises(SandboxLost, match="the sandbox is closed"):
            await run
        await handle.close()
        assert removed == [1]
        await peer.gone()
        peer.close()

    asyncio.run(scenario())


def test_no_answer_of_an_earlier_life_is_delivered() -> None:
    async def scenario(handle: GuestHandle, peer: Peer) -> None:
        run = asyncio.create_task(handle.run(Exec(("old",))))
        old = await peer.hear_a(wire.RUN)
        handle.link.greet({}, "/", None)
        with pytest.raises(SandboxLost, match="reset"):
            await run
        late = peer.output(old.id, b"late") + peer.ended(old.id)
        run = asyncio.create_task(handle.run(Exec(("new",))))
        await peer.say(late)
        await peer.greet()
        assert peer.epoch == 2
        heard = await peer.hear_a(wire.RUN)
        assert heard.epoch == 2
        await peer.say(late + peer.ended(heard.id, code=5))
        seen = await run
        assert (seen.stdout, seen.exit_code) == (b"", 5)

    played(scenario)
