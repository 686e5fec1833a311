"""The launcher's client against the real launcher: whoever gives up, dies or runs out, nothing is left and all are told."""

import asyncio
import errno
import os
import resource
import signal
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from excise.action import Exec
from excise.errors import CapacityError, CreateError, SandboxLost, SpecError, SubstrateError
from excise.sandbox import Sandbox
from excise.spec import Limits, Mount, Spec
from excise.storage.image import resolve
from excise.substrates.namespace import NamespaceSubstrate, plan
from excise.substrates.namespace.handle import NamespaceHandle
from excise.substrates.namespace.launcher import Launcher
from excise.substrates.namespace.place import Place
from excise.substrates.namespace.request import Create

FOREVER = Exec(("sleep", "1000"))
TRUE = Exec(("true",))
TERMS: dict[str, Any] = {"deadline_s": 20.0, "lease_s": 60.0, "labels": {}}


@pytest.fixture(autouse=True)
def here(runs_here: Callable[[str], None]) -> None:
    runs_here("namespace")


@asynccontextmanager
async def opened() -> AsyncGenerator[NamespaceSubstrate]:
    substrate = NamespaceSubstrate()
    try:
        yield substrate
    finally:
        await substrate.close()


def run(body: Callable[[NamespaceSubstrate], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with opened() as substrate:
            await body(substrate)

    before = descriptors()
    asyncio.run(main())
    assert descriptors() == before


def descriptors() -> set[str]:
    """What this process has open, but for what it listed them by."""
    return {path.name for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}


def launched_by(pid: int) -> list[int]:
    """The first processes of the sandboxes that the launcher `pid` keeps."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def launchers() -> list[int]:
    return [int(child) for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


async def asked() -> Create:
    return plan.plan(Spec(), await resolve("host"))


async def begun(launcher: Launcher) -> Place:
    """A sandbox in the making whose guest has a link that leads nowhere, and so ends soon: only its making is of interest."""
    reading, writing = os.pipe()
    try:
        return await launcher.create(await asked(), reading, None)
    finally:
        os.close(reading)
        os.close(writing)


def test_the_same_request_is_the_same_sandbox() -> None:
    async def body(substrate: NamespaceSubstrate) -> None:
        one, two = await asyncio.gather(*(substrate.create(Spec(), request_id="r", **TERMS) for _ in range(2)))
        assert one is two
        assert len(launched_by(launchers()[0])) == 1
        await one.close()
        again = await substrate.create(Spec(), request_id="r", **TERMS)
        assert again is not one
        assert again.id != one.id

    run(body)


def test_a_create_that_is_cancelled_at_any_step_of_the_loop_leaves_nothing() -> None:
    async def body(substrate: NamespaceSubstrate) -> None:
        await substrate.probe()
        for steps in range(24):
            task = asyncio.create_task(substrate.create(Spec(), request_id=f"r{steps}", **TERMS))
            for _ in range(steps):
                await asyncio.sleep(0)
            if task.cancel():
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                await (await task).close()
            assert launched_by(launchers()[0]) == []

    run(body)


def test_a_sandbox_closed_while_it_is_made_is_gone() -> None:
    async def main() -> None:
        launcher = Launcher()
        try:
            await launcher.hello()
            place = await begun(launcher)
            await launcher.close(place)
            assert place.gone.done()
            assert launched_by(launcher.pid) == []
        finally:
            await launcher.end()

    asyncio.run(main())


def test_a_deadline_too_short_is_said_and_leaves_nothing() -> None:
    async def body(substrate: NamespaceSubstrate) -> None:
        await substrate.probe()
        with pytest.raises(CreateError, match="made no sandbox in 0 s"):
            await substrate.create(Spec(), request_id="r", **{**TERMS, "deadline_s": 0.0})
        assert launched_by(launchers()[0]) == []

    run(body)


def test_a_dead_launcher_is_a_lost_sandbox_and_a_new_launcher_for_those_after() -> None:
    async def body(substrate: NamespaceSubstrate) -> None:
        handle = await substrate.create(Spec(), request_id="r", **TERMS)
        await handle.ready()
        (killed,) = launchers()
        os.kill(killed, signal.SIGKILL)
        with pytest.raises(SandboxLost):
            await handle.run(FOREVER)
        await handle.close()
        after = await substrate.create(Spec(), request_id="s", **TERMS)
        await after.ready()
        assert killed not in launchers()

    run(body)


def test_a_launcher_that_dies_while_it_makes_one_is_a_failed_create() -> None:
    async def body(substrate: NamespaceSubstrate) -> None:
        await substrate.probe()
        (launcher,) = launchers()
        os.kill(launcher, signal.SIGSTOP)
        making = asyncio.create_task(substrate.create(Spec(), request_id="r", **TERMS))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        os.kill(launcher, signal.SIGKILL)
        with pytest.raises(SubstrateError, match="launcher"):
            await making

    run(body)


def test_an_image_that_is_gone_is_a_failed_create_that_names_the_step() -> None:
    async def main() -> None:
        launcher = Launcher()
        ours, theirs = os.pipe()
        try:
            await launcher.hello()
            place = await launcher.create(Create(lowers=("/no/such/image",), hostname="h"), ours, None)
            with pytest.raises(CreateError, match=r"/no/such/image.*No such file"):
                await place.ready
            await place.gone
        finally:
            os.close(ours)
            os.close(theirs)
            await launcher.end()

    asyncio.run(main())


def test_no_descriptor_left_is_a_lack_of_capacity() -> None:
    held: list[NamespaceHandle] = []

    async def fill(substrate: NamespaceSubstrate) -> None:
        for number in range(64):
            held.append(await substrate.create(Spec(), request_id=f"r{number}", **TERMS))

    async def body(substrate: NamespaceSubstrate) -> None:
        await substrate.probe()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = [number for number in range(4096) if str(number) not in descriptors()]
        resource.setrlimit(resource.RLIMIT_NOFILE, (free[12], hard))
        try:
            with pytest.raises((CapacityError, CreateError), match="ulimit -n"):
                await fill(substrate)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert len(launched_by(launchers()[0])) == len(held) > 0

    run(body)


def test_a_variable_that_cannot_be_said_leaves_nothing() -> None:
    async def body(substrate: NamespaceSubstrate) -> None:
        await substrate.probe()
        with pytest.raises(SpecError, match="variable's name"):
            await substrate.create(Spec(env={"A=B": "c"}), request_id="r", **TERMS)
        assert launched_by(launchers()[0]) == []

    run(body)


def test_a_mount_whose_source_is_not_there_is_a_mistake_in_the_spec(tmp_path: Path) -> None:
    async def body(substrate: NamespaceSubstrate) -> None:
        with pytest.raises(SpecError, match="is not on this machine"):
            await substrate.create(Spec(mounts=(Mount(str(tmp_path / "no"), "/mnt"),)), request_id="r", **TERMS)

    run(body)


MISTAKES = {
    "one process": (Spec(limits=Limits(pids=1)), "limits.pids=1 is too little for any program"),
    "a page of memory": (Spec(limits=Limits(memory_bytes=4096)), "limits.memory_bytes=4096 is too little for any program"),
    "no processes": (Spec(limits=Limits(pids=0)), "limits.pids=0"),
    "nobody of that name": (Spec(user="nosuch"), "no user for 'nosuch' in the image's /etc/passwd"),
    "a file to work in": (Spec(workdir="/etc/passwd"), "/etc/passwd: Not a directory"),
    "a directory in a file": (Spec(workdir="/etc/passwd/x"), "make /etc/passwd/x: Not a directory"),
    "a variable too long": (Spec(env={"A": "x" * 200_000}), "Argument list too long"),
    "a directory on a file": (Spec(mounts=(Mount("/etc", "/etc/passwd"),)), "a file for a file"),
    "a hundred mounts": (Spec(mounts=tuple(Mount("/etc", f"/m{n}") for n in range(100))), "more than the"),
    "no character device": (Spec(devices=("/dev/excise",)), "/dev/excise is not on this machine"),
}


@pytest.mark.parametrize(("spec", "said"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_spec_that_no_program_can_run_in_is_a_mistake_and_says_which(spec: Spec, said: str) -> None:
    async def body(substrate: NamespaceSubstrate) -> None:
        capabilities = await substrate.probe()
        if spec.limits.asked() - capabilities.limits or (spec.user and not capabilities.users):
            pytest.skip("this user's sandboxes do not have that")
        with pytest.raises(SpecError) as refused:
            async with Sandbox(substrate, spec):
                pass
        assert said in str(refused.value)
        assert "\n" not in str(refused.value)
        async with Sandbox(substrate) as box:  # nothing of it is in the way of another
            assert (await box.run(["true"])).ok

    run(body)


def test_a_limit_of_processes_for_this_user_is_a_lack_of_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr("subprocess.Popen", full)

    async def body(substrate: NamespaceSubstrate) -> None:
        with pytest.raises(CapacityError, match="ulimit -u"):
            await substrate.create(Spec(), request_id="one", **TERMS)

    run(body)


def test_a_lease_that_ran_out_ends_the_sandbox_and_a_renewed_one_does_not() -> None:
    async def body(substrate: NamespaceSubstrate) -> None:
        short = await substrate.create(Spec(), request_id="short", **{**TERMS, "lease_s": 0.2})
        kept = await substrate.create(Spec(), request_id="kept", **{**TERMS, "lease_s": 0.2})
        await kept.renew(60)
        with pytest.raises(SandboxLost, match="lease ran out"):
            await short.run(FOREVER)
        assert (await kept.run(TRUE)).ok
        await short.close()
        assert len(launched_by(launchers()[0])) == 1

    run(body)


def test_closing_the_substrate_ends_its_launcher_and_its_sandboxes() -> None:
    async def main() -> None:
        async with opened() as substrate:
            for number in range(3):
                await substrate.create(Spec(), request_id=str(number), **TERMS)
            (launcher,) = launchers()
            guests = launched_by(launcher)
            assert len(guests) == 3
        assert launchers() == []
        assert [pid for pid in guests if Path(f"/proc/{pid}").exists()] == []

    asyncio.run(main())


def test_a_substrate_is_of_the_loop_it_was_opened_in_and_can_be_closed_in_another() -> None:
    substrate = NamespaceSubstrate()
    before = descriptors()

    async def use() -> None:
        async with Sandbox(substrate):
            pass

    asyncio.run(use())
    assert launchers()
    with pytest.raises(RuntimeError, match="was opened in another event loop: connect to it again"):
        asyncio.run(use())
    asyncio.run(substrate.close())
    assert launchers() == []
    assert descriptors() == before


def test_a_create_is_told_that_the_substrate_was_closed() -> None:
    async def body(substrate: NamespaceSubstrate) -> None:
        making = asyncio.ensure_future(substrate.create(Spec(), request_id="one", **TERMS))
        await asyncio.sleep(0)
        await substrate.close()
        with pytest.raises(CreateError, match="namespace was closed while it made this sandbox; connect to it again"):
            await making

    run(body)


def test_the_address_says_what_was_chosen() -> None:
    assert NamespaceSubstrate().address == "namespace"
    assert NamespaceSubstrate(sudo=True).address == "namespace?sudo=1"


def test_a_launcher_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("excise.substrates.namespace.launcher._END_S", 0.2)

    async def main() -> None:
        launcher = Launcher()
        await launcher.hello()
        os.kill(launcher.pid, signal.SIGSTOP)
        await launcher.end()
        assert launchers() == []

    asyncio.run(main())
