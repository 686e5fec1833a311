"""What every Handle does the same way: variables, batches, the start state, and cleanups that are carried to their end."""

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest

from excise.action import Batch, End, Event, Exec, Exit, Keep, Observation, Output, Read, Shell, Write
from excise.errors import CreateError, SandboxLost, SpecError
from excise.handles import combine, environment, finish, make_ready, observe, run_batch, start_up, without_secrets
from excise.spec import Secret, Spec, Step
from excise.substrate import Process
from excise.substrates.fake import FakeSubstrate, virtual_time
from excise.substrates.fake.handle import FakeHandle
from excise.substrates.fake.proc import Proc

TOKEN = "hunter2-and-more"


async def created(spec: Spec | None = None, substrate: FakeSubstrate | None = None) -> FakeHandle:
    """A sandbox that is made, and not yet ready."""
    made = substrate or FakeSubstrate()
    return await made.create(spec or Spec(), deadline_s=60, lease_s=60, labels={}, request_id="one")


# ---- variables


def test_of_a_variables_values_the_one_nearest_to_the_action_wins() -> None:
    spec = Spec(env={"B": "spec", "C": "spec", "D": "spec"}, secrets={"C": Secret("secret"), "D": Secret("secret")})
    image = {"A": "image", "B": "image", "C": "image", "D": "image"}
    action = Exec(("env",), env={"D": "action"})
    assert environment(image, spec, action) == {"A": "image", "B": "spec", "C": "secret", "D": "action"}
    assert environment(image, spec) == {"A": "image", "B": "spec", "C": "secret", "D": "secret"}
    assert image == {"A": "image", "B": "image", "C": "image", "D": "image"}


# ---- observing


class Played:
    """A process that says what it was told to say."""

    def __init__(self, *events: Event) -> None:
        self._events = events

    async def events(self) -> AsyncIterator[Event]:
        for event in self._events:
            yield event


def observed(*events: Event, keep: Keep = Keep()) -> Observation:  # noqa: B008 - a frozen record
    return asyncio.run(observe(cast(Process, Played(*events)), keep))


def test_each_stream_is_kept_by_itself_and_what_was_dropped_is_summed() -> None:
    seen = observed(
        Output("stdout", b"abcdef"),
        Output("stderr", b"123"),
        Output("stdout", b"ghi"),
        Output("stderr", b"456"),
        Exit(Observation(exit_code=3, guest_ns=5)),
        keep=Keep(2, 2),
    )
    assert (seen.stdout, seen.stderr, seen.dropped_bytes) == (b"abhi", b"1256", 5 + 2)
    assert (seen.exit_code, seen.guest_ns) == (3, 5)


def test_events_that_end_without_an_exit_are_a_lost_sandbox_and_no_result() -> None:
    with pytest.raises(SandboxLost, match="without its exit"):
        observed(Output("stdout", b"x"))


# ---- batches


def test_a_batch_ends_as_its_last_part_did() -> None:
    parts = [
        Observation(guest_ns=2, still_running=True),
        Observation(guest_ns=3, end=End.SIGNALED, exit_code=None, signal=9, stdout=b"x"),
    ]
    seen = combine(parts)
    assert (seen.end, seen.exit_code, seen.signal) == (End.SIGNALED, None, 9)
    assert (seen.guest_ns, seen.still_running, seen.parts) == (5, True, tuple(parts))
    assert not seen.ok


def test_a_batch_with_a_failure_in_the_middle_is_not_ok() -> None:
    assert not combine([Observation(exit_code=1), Observation()]).ok


def test_a_time_that_one_part_does_not_know_nobody_knows() -> None:
    assert combine([Observation(guest_ns=2), Observation()]).guest_ns is None


def test_an_empty_batch_is_fine() -> None:
    assert combine([]) == Observation(guest_ns=0)


@pytest.mark.parametrize(("stop", "parts", "wrote"), [(True, 2, False), (False, 3, True)])
def test_a_batch_runs_in_turn_and_stops_or_goes_on_at_a_failure(*, stop: bool, parts: int, wrote: bool) -> None:
    async def main() -> None:
        handle = await created()
        seen = await run_batch(
            handle, Batch((Shell("echo 1 > f"), Shell("cat f; false"), Write("g", b"")), stop_on_failure=stop)
        )
        assert len(seen.parts) == parts
        assert seen.parts[1].stdout == b"1\n"
        assert (await handle.run(Read("g"))).ok is wrote

    virtual_time.run(main())


# ---- the start state


def test_steps_are_done_in_order_before_boot_and_ready() -> None:
    spec = Spec(
        steps=(Step("one", (Shell("echo one >> log"),)), Step("two", (Shell("echo two >> log"), Write("f", b"x")))),
        boot=(Shell("echo boot >> log; sleep 1000"),),
        ready=(Shell("test -f log && test -f f"),),
    )

    async def main() -> None:
        handle = await created(spec)
        await make_ready(handle, spec)
        await asyncio.sleep(1)
        assert (await handle.run(Read("log"))).stdout == b"one\ntwo\nboot\n"

    virtual_time.run(main())


@pytest.mark.parametrize(
    "command",
    [
        Shell('echo "$A" "$(pwd)" > /tmp/f; yes', cwd="/tmp", env={"A": "a"}),
        Exec(("sh", "-c", 'echo "$A" "$(pwd)" > "$1"; yes', "sh", "/tmp/f"), cwd="/tmp", env={"A": "a"}),
    ],
    ids=["shell", "exec"],
)
def test_a_boot_command_is_left_running_with_its_own_directory_and_variables(command: Shell | Exec) -> None:
    spec = Spec(boot=(command,), ready=(Shell("test -s /tmp/f"),))

    async def main() -> None:
        handle = await created(spec)
        await start_up(handle, spec)
        assert (await handle.run(Read("/tmp/f"))).stdout == b"a /tmp\n"
        assert [proc.argv[0] for proc in handle.machine.processes.values()].count("yes") == 1
        await handle.close()

    virtual_time.run(main())


def failure(spec: Spec, substrate: FakeSubstrate | None = None, kind: type[Exception] = CreateError) -> str:
    async def main() -> str:
        handle = await created(spec, substrate)
        with pytest.raises(kind) as refused:
            await make_ready(handle, spec)
        return str(refused.value)

    return virtual_time.run(main())


def test_the_step_that_failed_is_named_with_what_it_printed_and_later_ones_are_not_run() -> None:
    never = Step("never", (Shell("echo ran >&2; false"),))
    failing = Step("install", (Shell("echo no such package >&2; exit 3"),))
    assert failure(Spec(steps=(failing, never))) == "step 'install' failed: no such package\n\n[exit code 3]"


def test_a_long_output_is_told_by_its_end() -> None:
    said = failure(Spec(steps=(Step("talk", (Shell("head -c 100000 /dev/zero; echo the reason; false"),)),)))
    assert "the reason" in said
    assert len(said) < 2100


def test_a_step_that_failed_without_a_word_says_how_it_ended() -> None:
    said = failure(Spec(steps=(Step("fetch", (Read("/nowhere"),)),)))
    assert said.startswith("step 'fetch' failed: ")
    assert said != "step 'fetch' failed: "


def test_a_deps_script_that_fails_is_the_step_deps() -> None:
    assert failure(Spec(deps="exit 4")).startswith("step 'deps' failed: ")


SECRETS = {
    "one": {"TOKEN": Secret(TOKEN)},
    "one inside another": {"SHORT": Secret("hunter2"), "TOKEN": Secret(TOKEN)},
    "an empty one too": {"NONE": Secret(""), "TOKEN": Secret(TOKEN)},
    "with spaces around it": {"TOKEN": Secret(f"  {TOKEN} ")},
}


@pytest.mark.parametrize("secrets", SECRETS.values(), ids=SECRETS.keys())
def test_a_step_that_prints_a_secret_does_not_put_it_into_the_error(secrets: dict[str, Secret]) -> None:
    said = failure(Spec(secrets=secrets, steps=(Step("login", (Shell('printf "%s" "$TOKEN" >&2; false'),)),)))
    assert said == "step 'login' failed: ***\n[exit code 1]"


def test_a_first_command_that_prints_a_secret_does_not_put_it_into_the_error() -> None:
    async def telling(proc: Proc, _: list[str]) -> int:
        await proc.write(2, proc.env["TOKEN"].encode())
        return 1

    substrate = FakeSubstrate()
    substrate.install("true", telling)
    said = failure(Spec(secrets={"TOKEN": Secret(TOKEN)}), substrate)
    assert said == "the sandbox's first command failed: ***\n[exit code 1]"


@pytest.mark.parametrize("code", [126, 127])
def test_a_first_command_that_cannot_be_started_is_the_specs_mistake(code: int) -> None:
    async def nobody(proc: Proc, _: list[str]) -> int:
        await proc.write(2, b"no such user\n")
        return code

    substrate = FakeSubstrate()
    substrate.install("true", nobody)
    said = failure(Spec(), substrate, SpecError)
    assert said == "no program starts with this spec's image, user, workdir and env: no such user"


def test_without_secrets_leaves_the_rest_as_it_is() -> None:
    spec = Spec(secrets={"A": Secret("aa"), "B": Secret("")})
    assert without_secrets("a aa aaa b", spec) == "a *** ***a b"


def test_a_probe_is_asked_again_until_it_passes() -> None:
    spec = Spec(boot=(Shell("sleep 7; echo up > f"),), ready=(Shell("echo >> asked; test -f f"),))

    async def main() -> None:
        handle = await created(spec)
        await start_up(handle, spec)
        assert 7 <= asyncio.get_running_loop().time() < 8
        asked = (await handle.run(Read("asked"))).stdout.count(b"\n")
        assert 7 < asked < 30, "often enough to notice soon, rarely enough to disturb nobody"

    virtual_time.run(main())


def test_a_probe_that_never_passes_ends_with_the_callers_deadline() -> None:
    spec = Spec(ready=(Shell("false"),))

    async def main() -> None:
        handle = await created(spec)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await start_up(handle, spec)

    virtual_time.run(main())


# ---- cleanups


class Cleanup:
    """One that takes its time, and may fail."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.done = False
        self._error = error

    async def run(self) -> None:
        await asyncio.sleep(10)
        self.done = True
        if self._error is not None:
            raise self._error


def test_a_cleanup_is_waited_for() -> None:
    async def main() -> None:
        cleanup = Cleanup()
        await finish(cleanup.run())
        assert cleanup.done

    virtual_time.run(main())


@pytest.mark.parametrize("times", [1, 2, 5])
def test_cancellations_wait_for_the_cleanup_and_come_after_it(times: int) -> None:
    async def main() -> None:
        cleanup = Cleanup()
        task = asyncio.create_task(finish(cleanup.run()))
        for _ in range(times):
            await asyncio.sleep(1)
            task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert cleanup.done
        assert task.cancelled()

    virtual_time.run(main())


def test_a_cancellation_that_came_before_the_cleanup_began_also_waits() -> None:
    async def main() -> None:
        cleanup = Cleanup()

        async def cancelled_already() -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await finish(cleanup.run())

        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(cancelled_already())
        assert cleanup.done

    virtual_time.run(main())


def test_a_cancellation_in_the_moment_the_cleanup_ends_is_not_lost() -> None:
    async def main() -> None:
        ended = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(finish(ended))
        await asyncio.sleep(1)
        ended.set_result(None)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    virtual_time.run(main())


@pytest.mark.parametrize("cancels", [0, 1])
def test_a_cleanups_own_error_is_raised(cancels: int) -> None:
    async def main() -> None:
        task = asyncio.create_task(finish(Cleanup(SandboxLost("it stays")).run()))
        await asyncio.sleep(1)
        for _ in range(cancels):
            task.cancel()
        with pytest.raises(SandboxLost, match="it stays"):
            await task

    virtual_time.run(main())


def test_a_cleanup_that_is_itself_cancelled_does_not_wait_for_ever() -> None:
    async def main() -> None:
        with pytest.raises(asyncio.CancelledError):
            await finish(Cleanup(asyncio.CancelledError()).run())

    virtual_time.run(main())
