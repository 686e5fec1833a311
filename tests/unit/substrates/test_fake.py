"""The pretend substrate: scripted latencies and faults, exact on a virtual clock."""

import asyncio
from collections.abc import Sequence

import pytest

from excise.action import End, Read, Shell
from excise.contract.suite import CASES
from excise.errors import CreateError, SandboxLost, SpecError
from excise.registry import make
from excise.sandbox import Sandbox
from excise.spec import Limits, Mount, Spec
from excise.substrates.fake import FakeSubstrate, virtual_time
from excise.substrates.fake.broken import BROKEN
from excise.substrates.fake.proc import Proc
from excise.trace import Span, Trace, recording

MEBIBYTE = 1 << 20


async def traced(substrate: FakeSubstrate, scripts: Sequence[str]) -> list[Span]:
    with recording(Trace()) as trace:
        async with Sandbox(substrate) as box:
            for script in scripts:
                await box.run(script)
        return trace.spans


def seconds(spans: list[Span]) -> list[tuple[str, float]]:
    return [(one.name, one.duration_ns / 1e9) for one in spans]


def test_every_promise_of_the_contract_has_its_way_to_be_broken() -> None:
    assert sorted(BROKEN) == sorted(case.name for case in CASES)


def test_a_promise_that_is_none_is_refused() -> None:
    with pytest.raises(SpecError, match="excise check --list"):
        make("fake:broken=no-such-promise")


@pytest.mark.parametrize("options", ["create_s=-1", "lose=2", "fail_create=-0.5", "action_s=inf", "jitter=x", "nonsense=1"])
def test_an_option_that_makes_no_sense_is_refused(options: str) -> None:
    with pytest.raises(SpecError):
        make(f"fake:{options}")


def test_the_address_is_canonical() -> None:
    assert make("fake:create_s=0.5,seed=0").address == "fake?create_s=0.5"
    assert FakeSubstrate(broken="cwd").address == "fake?broken=cwd"


def test_without_options_nothing_takes_time() -> None:
    spans = virtual_time.run(traced(FakeSubstrate(), ["true"]))
    assert seconds(spans) == [("create", 0), ("ready", 0), ("action", 0), ("cleanup", 0)]


def test_scripted_latencies_are_exact() -> None:
    substrate = FakeSubstrate(create_s=2, ready_s=0.5, action_s=0.25, guest_s=0.125, close_s=1)
    spans = virtual_time.run(traced(substrate, ["sleep 3"]))
    # ready holds one action of its own: the first command's result.
    assert seconds(spans) == [("create", 2), ("ready", 0.875), ("action", 3.375), ("cleanup", 1)]
    assert spans[2].guest_ns == 3_125_000_000


def test_jitter_is_seeded() -> None:
    def create_times(seed: int) -> list[tuple[str, float]]:
        return seconds(virtual_time.run(traced(FakeSubstrate(create_s=1, action_s=1, jitter=0.2, seed=seed), ["true"] * 5)))

    assert create_times(1) == create_times(1)
    assert create_times(1) != create_times(2)
    assert create_times(1)[0] != ("create", 1.0)


def test_creates_fail_as_often_as_asked() -> None:
    async def failures() -> int:
        substrate, failed = FakeSubstrate(fail_create=0.3, seed=4), 0
        for _ in range(200):
            try:
                async with Sandbox(substrate):
                    pass
            except CreateError:
                failed += 1
        return failed

    assert 40 <= virtual_time.run(failures()) <= 80


def test_a_lost_sandbox_stays_lost() -> None:
    async def lose() -> None:
        async with Sandbox(FakeSubstrate(lose=1)) as box:
            for _ in range(2):
                with pytest.raises(SandboxLost):
                    await box.run("true")

    virtual_time.run(lose())


def test_two_fakes_share_nothing() -> None:
    async def both() -> tuple[int, int]:
        one, two = FakeSubstrate(), FakeSubstrate()
        async with Sandbox(one) as box:
            await box.write("/tmp/file", b"x")
            async with Sandbox(two) as other:
                with pytest.raises(FileNotFoundError):
                    await other.read("/tmp/file")
            return len(await one.list({})), len(await two.list({}))

    assert virtual_time.run(both()) == (1, 0)


def test_a_program_of_ones_own() -> None:
    async def pytest_program(proc: Proc, argv: list[str]) -> int:
        await proc.compute(2.0)
        await proc.write(1, f"{len(argv)} words\n".encode())
        return 1

    async def use() -> tuple[int | None, bytes, int | None, int | None]:
        substrate = FakeSubstrate()
        substrate.install("pytest", pytest_program)
        async with Sandbox(substrate) as box:
            seen = await box.run(["pytest", "-q"])
            return seen.exit_code, seen.stdout, seen.guest_ns, seen.cpu_ns

    assert virtual_time.run(use()) == (1, b"2 words\n", 2_000_000_000, 2_000_000_000)


def test_it_works_on_an_ordinary_loop_and_a_busy_script_does_not_hold_it_up() -> None:
    async def use() -> tuple[End, bytes]:
        async with Sandbox(FakeSubstrate()) as box:
            busy, quick = await asyncio.gather(box.run("while :; do :; done", timeout_s=0.05), box.run("echo hi"))
            return busy.end, quick.stdout

    assert asyncio.run(use()) == (End.TIMED_OUT, b"hi\n")


def test_a_flood_that_is_read_ends_at_its_timeout() -> None:
    async def use() -> End:
        async with Sandbox(FakeSubstrate()) as box:
            return (await box.run("yes", timeout_s=0.5)).end

    assert virtual_time.run(use()) is End.TIMED_OUT


def test_endless_recursion_is_a_crash_inside() -> None:
    async def use() -> tuple[End, int | None, bytes]:
        async with Sandbox(FakeSubstrate()) as box:
            seen = await box.run("f() { f; }; f")
            return seen.end, seen.signal, (await box.run("echo alive")).stdout

    assert virtual_time.run(use()) == (End.SIGNALED, 11, b"alive\n")


def test_closing_leaves_no_task_behind() -> None:
    async def use() -> int:
        substrate = FakeSubstrate()
        box = Sandbox(substrate)
        await box.open()
        await box.run("sleep 1000 & setsid sleep 1000 & true")
        await box.run("sleep 1000 &", session="main")
        await box.start("yes")
        await box.close()
        return len(asyncio.all_tasks())

    assert virtual_time.run(use()) == 1


def test_inodes_are_limited() -> None:
    async def use() -> End:
        async with Sandbox(FakeSubstrate(), Spec(limits=Limits(inodes=10))) as box:
            return (await box.run("i=0; while touch file$i; do i=$((i + 1)); done; exit 1")).end

    assert virtual_time.run(use()) is End.OUT_OF_DISK


def test_disk_space_comes_back_when_files_go() -> None:
    async def use() -> None:
        async with Sandbox(FakeSubstrate(), Spec(limits=Limits(disk_bytes=MEBIBYTE))) as box:
            for _ in range(3):
                await box.write("file", bytes(MEBIBYTE))
                with pytest.raises(OSError, match="No space left"):
                    await box.write("other", b"x")
                await box.remove("other")
                await box.remove("file")

    virtual_time.run(use())


def test_an_ordinary_user_is_refused_what_is_not_his() -> None:
    async def use() -> tuple[int | None, bytes]:
        async with Sandbox(FakeSubstrate(), Spec(user="user")) as box:
            await box.write("mine", b"x", mode=0o000)
            with pytest.raises(PermissionError):
                await box.read("mine")
            with pytest.raises(PermissionError):
                await box.write("/etc/passwd", b"")
            seen = await box.run("id -un; echo x > /etc/new")
            return seen.exit_code, seen.stdout

    assert virtual_time.run(use()) == (2, b"user\n")


def test_a_user_nobody_knows_and_a_writable_mount_are_refused() -> None:
    async def use(spec: Spec) -> None:
        async with Sandbox(FakeSubstrate(), spec):
            pass

    for spec in (
        Spec(user="nemo"),
        Spec(mounts=(Mount("/etc", "/mnt", read_only=False),)),
        Spec(mounts=(Mount("/no/such", "/mnt"),)),
    ):
        with pytest.raises(SpecError):
            virtual_time.run(use(spec))


def test_a_session_takes_no_options_of_an_action() -> None:
    async def use() -> None:
        async with Sandbox(FakeSubstrate()) as box:
            with pytest.raises(SpecError, match="cwd, env"):
                await box.run(Shell("true", session="main", cwd="/", env={"A": "1"}))

    virtual_time.run(use())


def test_a_session_killed_from_outside_says_so_once() -> None:
    async def use() -> list[bool]:
        async with Sandbox(FakeSubstrate()) as box:
            pid = (await box.run("echo $$", session="main")).stdout.decode().strip()
            await box.run(f"kill -9 {pid}")
            return [(await box.run("true", session="main")).session_replaced for _ in range(2)]

    assert virtual_time.run(use()) == [True, False]


def test_an_action_on_its_way_in_during_a_reset_is_lost() -> None:
    async def use() -> None:
        async with Sandbox(FakeSubstrate(action_s=1)) as box:
            snapshot = await box.snapshot()
            resetting = asyncio.create_task(box.reset(snapshot))
            await asyncio.sleep(0.5)
            late = asyncio.create_task(box.run("echo hi"))
            await resetting
            with pytest.raises(SandboxLost):
                await late
            assert (await box.run("echo hi")).stdout == b"hi\n"

    virtual_time.run(use())


def test_ctrl_c_interrupts_what_runs_on_a_terminal() -> None:
    async def use() -> tuple[End, int | None]:
        from excise.action import Pty

        async with Sandbox(FakeSubstrate()) as box:
            process = await box.start("sleep 1000", pty=Pty())
            await asyncio.sleep(1)
            await process.write(b"\x03")
            seen = await process.wait()
            return seen.end, seen.signal

    assert virtual_time.run(use()) == (End.SIGNALED, 2)


def test_the_same_story_is_told_the_same_way_every_time() -> None:
    async def story() -> list[tuple[str, int, int | None]]:
        with recording(Trace()) as trace:
            async with Sandbox(FakeSubstrate(create_s=1, action_s=0.1, jitter=0.5, seed=9)) as box:
                await asyncio.gather(*(box.run(f"sleep 0.{n}; echo {n} >> log") for n in range(1, 9)))
                await box.run(Read("log"))
        return [(one.name, one.duration_ns, one.guest_ns) for one in trace.spans]

    assert virtual_time.run(story()) == virtual_time.run(story())
