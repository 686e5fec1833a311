"""What a user holds: deadlines, errors, spans and conveniences, the same over every substrate."""

import asyncio
import contextvars
import subprocess
import sys
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from excise.action import Batch, End, Exec, List, MakeDir, Move, Read, Remove, Shell, Stat, Write
from excise.errors import CreateError, ReadyTimeout, SandboxLost, SpecError
from excise.sandbox import ANSWER_GRACE_S, Sandbox
from excise.spec import Spec
from excise.substrates.fake import FakeSubstrate, virtual_time
from excise.substrates.fake.image import WORKDIR
from excise.trace import Trace, recording


def now_s() -> float:
    return asyncio.get_running_loop().time()


# ---- deadlines


@pytest.mark.parametrize(
    ("substrate", "spec", "error"),
    [
        (FakeSubstrate(create_s=100), Spec(), CreateError),
        (FakeSubstrate(create_s=100, broken="create-keeps-its-deadline"), Spec(), CreateError),
        (FakeSubstrate(ready_s=100), Spec(), ReadyTimeout),
        (FakeSubstrate(create_s=3, ready_s=3), Spec(), ReadyTimeout),
        (FakeSubstrate(), Spec(ready=(Shell("false"),)), ReadyTimeout),
        (FakeSubstrate(), Spec(deps="sleep 100"), ReadyTimeout),
    ],
    ids=["create", "create of a substrate without deadline", "ready", "both together", "probe", "step"],
)
def test_a_sandbox_that_is_late_is_an_error_at_the_deadline_and_gone(
    substrate: FakeSubstrate, spec: Spec, error: type[Exception]
) -> None:
    async def main() -> None:
        box = Sandbox(substrate, spec, wait_s=5)
        with pytest.raises(error, match=r"^fake.* in 5 s; "):
            await box.open()
        assert now_s() == 5
        assert await substrate.list({}) == ()
        with pytest.raises(RuntimeError, match="not open"):
            await box.run("true")

    virtual_time.run(main())


@pytest.mark.parametrize(
    ("run", "limit_s"),
    [
        (lambda box: box.run("true"), 7),
        (lambda box: box.run("true", timeout_s=5), 5),
        (lambda box: box.run(["true"], timeout_s=5), 5),
        (lambda box: box.run(Exec(("true",))), 7),
        (lambda box: box.run(Shell("true", timeout_s=0.5)), 0.5),
        (lambda box: box.read("/etc/passwd"), 7),
        (lambda box: box.run(Batch((Shell("true", timeout_s=2), Read("/x"), Shell("true", timeout_s=3)))), 2 + 7 + 3),
    ],
)
def test_an_action_that_is_never_answered_is_a_lost_sandbox(run: Any, limit_s: float) -> None:
    async def main() -> None:
        substrate = FakeSubstrate()
        async with Sandbox(substrate, timeout_s=7) as box:
            substrate.action_s = 1e6
            with pytest.raises(SandboxLost, match=f"30 s after the action's own timeout of {limit_s:g} s"):
                await run(box)
            assert now_s() == limit_s + ANSWER_GRACE_S
        assert await substrate.list({}) == ()

    virtual_time.run(main())


async def tar() -> AsyncIterator[bytes]:
    yield bytes(10240)


@pytest.mark.parametrize(
    ("verb", "limit_s"),
    [
        ("start", 7 + ANSWER_GRACE_S),
        ("upload", 7 + ANSWER_GRACE_S),
        ("snapshot", 9),
        ("reset", 9),
        ("diff", 7 + ANSWER_GRACE_S),
        ("pause", 9),
        ("resume", 9),
        ("connect", 9),
    ],
)
def test_every_verb_has_a_deadline(verb: str, limit_s: float) -> None:
    async def main() -> None:
        substrate = FakeSubstrate()
        async with Sandbox(substrate, timeout_s=7, wait_s=9) as box:
            taken = await box.snapshot()
            substrate.action_s = 1e6
            words: dict[str, tuple[Any, ...]] = {
                "start": ("true",),
                "upload": ("/work", tar()),
                "reset": (taken,),
                "connect": (80,),
            }
            with pytest.raises(SandboxLost, match=f"^{verb} was not answered in {limit_s:g} s$"):
                await getattr(box, verb)(*words.get(verb, ()))
            assert now_s() == limit_s

    virtual_time.run(main())


def test_an_action_has_the_sandboxs_timeout_unless_it_brings_its_own() -> None:
    async def main() -> None:
        async with Sandbox(FakeSubstrate(), timeout_s=7) as box:
            for run, taken_s in (
                (box.run("sleep 100"), 7),
                (box.run(["sleep", "100"]), 7),
                (box.run(Shell("sleep 100")), 7),
                (box.run("sleep 100", timeout_s=3), 3),
                (box.run(Exec(("sleep", "100"), timeout_s=2)), 2),
            ):
                before_s = now_s()
                assert (await run).end is End.TIMED_OUT
                assert now_s() - before_s == pytest.approx(taken_s)
            process = await box.start("sleep 100")
            assert (await process.wait()).end is End.TIMED_OUT

    virtual_time.run(main())


# ---- what is asked for


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda box: box.run(Exec(("true",)), timeout_s=1), "carries its own session and options: give them there"),
        (lambda box: box.run(Shell("true"), session="main"), "carries its own session and options: give them there"),
        (lambda box: box.run(Read("/x"), cwd="/"), "carries its own session and options: give them there"),
        (lambda box: box.start(Shell("true"), merge=True), "carries its own session and options: give them there"),
        (lambda box: box.run("true", timeout=3), "run has no such option: .*'timeout'"),
        (lambda box: box.run(["true"], check=True), "run has no such option: .*'check'"),
        (lambda box: box.run(["true"], session="main"), "a session takes shell text, not an argv list"),
        (lambda box: box.run([]), "argv is empty"),
        (lambda box: box.run(["cat", Path("/x")]), r"holds texts alone: give str\(\)"),
        (lambda box: box.run(b"true"), "shell text, an argv list or an action record, not bytes"),
        (lambda box: box.run(None), "shell text, an argv list or an action record, not NoneType"),
        (lambda box: box.run("a\0b"), "NUL"),
        (lambda box: box.start(Read("/x")), "start takes a command, not Read"),
        (lambda box: box.start(Batch(())), "start takes a command, not Batch"),
        (lambda box: box.fork(0).__aenter__(), r"fork\(0\): a group has at least one sandbox"),
    ],
)
def test_a_wrong_request_is_a_spec_error_and_reaches_nobody(ask: Any, sentence: str) -> None:
    async def main() -> None:
        with recording(Trace()) as trace:
            async with Sandbox(FakeSubstrate()) as box:
                with pytest.raises(SpecError, match=sentence):
                    await ask(box)
        assert [span.name for span in trace.spans] == ["create", "ready", "cleanup"]

    virtual_time.run(main())


def test_text_is_a_script_a_list_is_an_argv_and_options_reach_either() -> None:
    async def main() -> None:
        async with Sandbox(FakeSubstrate()) as box:
            assert (await box.run("echo a; echo $B", env={"B": "b"})).stdout == b"a\nb\n"
            assert (await box.run(["echo", "a; echo $B"])).stdout == b"a; echo $B\n"
            assert (await box.run(("pwd",), cwd="/tmp")).stdout == b"/tmp\n"
            assert (await box.run("cat", stdin=b"in")).stdout == b"in"
            await box.run("cd /tmp", session="main")
            assert (await box.run("pwd", session="main")).stdout == b"/tmp\n"
            assert (await (await box.start("echo out; echo err >&2", merge=True)).wait()).stdout == b"out\nerr\n"

    virtual_time.run(main())


# ---- files


def test_files_come_back_as_they_were_written() -> None:
    async def main() -> None:
        async with Sandbox(FakeSubstrate()) as box:
            await box.write("d/f", b"\0\xff", mode=0o640)
            await box.write("d/g", "ü")
            assert (await box.read("d/f"), await box.read("d/g")) == (b"\0\xff", "ü".encode())
            assert [(entry.name, entry.size_bytes) for entry in await box.list("d")] == [("f", 2), ("g", 2)]
            assert (await box.stat("d/f")).mode & 0o777 == 0o640
            await box.move("d/f", "d/h")
            await box.make_dir("d/e")
            await box.remove("d/g")
            assert [entry.name for entry in await box.list("d")] == ["e", "h"]
            await box.remove("d", recursive=True)
            with pytest.raises(FileNotFoundError):
                await box.list("d")

    virtual_time.run(main())


@pytest.mark.parametrize(
    ("action", "error"),
    [
        (Read("/nowhere"), FileNotFoundError),
        (Read("/etc"), IsADirectoryError),
        (Read("/etc/passwd/x"), NotADirectoryError),
        (Write("/etc", b""), IsADirectoryError),
        (List("/nowhere"), FileNotFoundError),
        (List("/etc/passwd"), NotADirectoryError),
        (Stat("/nowhere"), FileNotFoundError),
        (Remove("/nowhere"), FileNotFoundError),
        (Move("/nowhere", "/tmp/x"), FileNotFoundError),
        (MakeDir("/etc/passwd"), FileExistsError),
        (Read("/root/secret"), PermissionError),
    ],
    ids=lambda value: f"{type(value).__name__} {value.path}" if hasattr(value, "path") else "",
)
def test_a_file_action_fails_with_the_built_in_exception_and_its_path(
    action: Read | Write | List | Stat | Remove | Move | MakeDir, error: type[OSError]
) -> None:
    async def main() -> None:
        substrate = FakeSubstrate()
        async with Sandbox(substrate) as root:
            await root.run("echo x > /root/secret; chmod 700 /root")
            taken = await root.snapshot()
        async with Sandbox(substrate, msgspec.structs.replace(taken, spec=Spec(user="user"))) as box:
            with pytest.raises(error) as raised:
                await box.run(action)
        assert raised.value.filename == action.path
        assert raised.value.strerror

    virtual_time.run(main())


def test_a_batch_does_not_raise_and_says_which_part_failed() -> None:
    async def main() -> None:
        async with Sandbox(FakeSubstrate()) as box:
            seen = await box.run(Batch((Write("f", b"x"), Read("/nowhere"), Read("f"))))
            assert [part.ok for part in seen.parts] == [True, False]
            assert seen.parts[1].errno == 2
            assert not seen.ok

    virtual_time.run(main())


def test_a_command_that_fails_does_not_raise() -> None:
    async def main() -> None:
        async with Sandbox(FakeSubstrate()) as box:
            assert (await box.run("exit 3")).exit_code == 3
            assert (await box.run(["no-such-program"])).exit_code == 127

    virtual_time.run(main())


# ---- spans


def names_and_outcomes(trace: Trace) -> list[tuple[str, str, str]]:
    return [(span.name, span.kind, span.outcome) for span in trace.spans]


def test_a_rollout_leaves_its_spans_with_how_each_ended() -> None:
    substrate = FakeSubstrate(create_s=1, ready_s=2, action_s=3, guest_s=4, close_s=5)

    async def main() -> None:
        with recording(Trace()) as trace:
            async with Sandbox(substrate) as box:
                await box.run("exit 3")
                await box.run(["sleep", "100"], timeout_s=10)
                await box.run("cd /", session="main")
                with pytest.raises(FileNotFoundError):
                    await box.read("/nowhere")
                await box.run(Batch((Shell("true"),)))
                await box.reset(await box.snapshot())
        assert names_and_outcomes(trace) == [
            ("create", "", "ok"),
            ("ready", "", "ok"),
            ("action", "shell", "exited"),
            ("action", "exec", "timed_out"),
            ("action", "session", "exited"),
            ("action", "read", "ENOENT"),
            ("action", "batch", "exited"),
            ("snapshot", "", "ok"),
            ("reset", "", "ok"),
            ("cleanup", "", "ok"),
        ]
        create, ready, first, *_, cleanup = trace.spans
        assert [span.duration_ns for span in (create, ready, first, cleanup)] == [10**9, 9 * 10**9, 7 * 10**9, 5 * 10**9]
        assert (first.guest_ns, create.guest_ns) == (4 * 10**9, None)
        assert len({span.sandbox for span in trace.spans}) == 1
        assert all(earlier.end_ns <= later.start_ns for earlier, later in zip(trace.spans, trace.spans[1:], strict=False))

    virtual_time.run(main())


@pytest.mark.parametrize(
    ("substrate", "outcomes"),
    [
        (FakeSubstrate(fail_create=1), [("create", "CreateError")]),
        (FakeSubstrate(create_s=100), [("create", "CreateError")]),
        (FakeSubstrate(ready_s=100), [("create", "ok"), ("ready", "ReadyTimeout"), ("cleanup", "ok")]),
        (
            FakeSubstrate(lose=1),
            [("create", "ok"), ("ready", "ok"), ("action", "SandboxLost"), ("cleanup", "ok")],
        ),
    ],
    ids=["create fails", "create late", "ready late", "lost"],
)
def test_what_stopped_a_rollout_stands_in_its_trace(substrate: FakeSubstrate, outcomes: list[tuple[str, str]]) -> None:
    async def main() -> None:
        with recording(Trace()) as trace, pytest.raises((CreateError, ReadyTimeout, SandboxLost)):
            async with Sandbox(substrate, wait_s=5) as box:
                await box.run("true")
        assert [(span.name, span.outcome) for span in trace.spans] == outcomes

    virtual_time.run(main())


def test_background_work_does_not_land_in_a_rollouts_trace() -> None:
    substrate = FakeSubstrate(create_s=1)

    async def refill() -> None:
        async with Sandbox(substrate) as box:
            await box.run("true")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with recording(Trace()) as trace:
            background = loop.create_task(refill(), context=contextvars.Context())
            async with Sandbox(substrate) as box:
                await box.run("true")
            await background
        assert [span.name for span in trace.spans] == ["create", "ready", "action", "cleanup"]

    virtual_time.run(main())


def test_diff_is_paths_or_a_patch_of_one_directory() -> None:
    async def main() -> None:
        async with Sandbox(FakeSubstrate()) as box:
            await box.write("/etc/other", "x")
            await box.write("src/file", "new\n")
            saved = await box.snapshot()
            await box.write("src/file", "newer\n")
            assert [(one.path, one.kind) for one in await box.diff(under=WORKDIR)] == [
                (f"{WORKDIR}/src", "added"),
                (f"{WORKDIR}/src/file", "added"),
            ]
            assert [(one.path, one.kind) for one in await box.diff(saved)] == [(f"{WORKDIR}/src/file", "modified")]
            patch = await box.diff(saved, patch=True, under=f"{WORKDIR}/src")
            assert patch.startswith("diff --git a/file b/file\n")
            assert patch.endswith("@@ -1 +1 @@\n-new\n+newer\n")
            with pytest.raises(SpecError, match="from the root"):
                await box.diff(under="src")

    virtual_time.run(main())


def test_if_one_of_a_group_cannot_be_made_the_others_are_closed_and_the_snapshot_is_gone() -> None:
    async def main() -> None:
        substrate = FakeSubstrate(fail_create=0.5, seed=3)
        substrate.fail_create = 0.0
        async with Sandbox(substrate) as box:
            substrate.fail_create = 0.5
            with pytest.raises(CreateError):
                async with box.fork(8):
                    pass
            assert [entry.id for entry in await substrate.list({})] == [box.id]
            assert substrate._snapshots == {}

    virtual_time.run(main())


def test_forked_siblings_are_told_apart_in_the_trace() -> None:
    async def main() -> None:
        with recording(Trace()) as trace:
            async with Sandbox(FakeSubstrate()) as box, box.fork(3):
                pass
        creates = [span.sandbox for span in trace.spans if span.name == "create"]
        assert len(creates) == len(set(creates)) == 4

    virtual_time.run(main())


# ---- lease and labels


def test_the_lease_and_the_labels_reach_the_substrate_and_are_passed_on_to_forks() -> None:
    async def main() -> None:
        substrate = FakeSubstrate()
        spec = Spec(labels={"run": "7", "who": "spec"})
        async with Sandbox(substrate, spec, ttl_s=50, labels={"who": "me"}) as box:
            (listed,) = await substrate.list({})
            assert (listed.id, listed.labels, listed.lease_left_s) == (box.id, {"run": "7", "who": "me"}, 50)
            await box.renew(80)
            (listed,) = await substrate.list({"run": "7"})
            assert listed.lease_left_s == 80
            async with box.fork(2):
                assert [(one.labels, one.lease_left_s) for one in await substrate.list({})][1:] == [
                    ({"run": "7", "who": "me"}, 50)
                ] * 2

    virtual_time.run(main())


# ---- a substrate of its own

OWNED = """
from excise.errors import SandboxLost
from excise.substrates.fake import FakeSubstrate


class Owned(FakeSubstrate):
    made = []

    def __init__(self, *, close_s: float = 0.0, ready_s: float = 0.0, clings: bool = False) -> None:
        super().__init__(close_s=close_s, ready_s=ready_s)
        self.clings = clings
        self.closed = 0
        self.made.append(self)

    def forget(self, handle) -> None:
        super().forget(handle)
        if self.clings:
            raise SandboxLost("something of it is left")

    async def close(self) -> None:
        await super().close()
        self.closed += 1
"""


@pytest.fixture
def owned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Registers `owned`, a fake that counts its closes; every one that an address made."""
    (tmp_path / "an_owned_substrate.py").write_text(OWNED)
    (tmp_path / "owned-1.dist-info").mkdir()
    (tmp_path / "owned-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: owned\nVersion: 1\n")
    (tmp_path / "owned-1.dist-info" / "entry_points.txt").write_text("[excise.substrates]\nowned = an_owned_substrate:Owned\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "an_owned_substrate", raising=False)
    from an_owned_substrate import Owned  # pyright: ignore[reportMissingImports] - written above

    return Owned.made


def closes(made: list[Any], main: Coroutine[Any, Any, None]) -> list[int]:
    virtual_time.run(main)
    return [substrate.closed for substrate in made]


def test_a_substrate_named_by_address_is_closed_with_its_sandbox(owned: list[Any]) -> None:
    async def main() -> None:
        async with Sandbox("owned") as box:
            assert owned[0].closed == 0
            await box.run("true")

    assert closes(owned, main()) == [1]


def test_a_substrate_that_was_given_stays_open(owned: list[Any]) -> None:
    async def main() -> None:
        from an_owned_substrate import Owned  # pyright: ignore[reportMissingImports] - written above

        async with Sandbox(Owned()):
            pass

    assert closes(owned, main()) == [0]


def test_it_is_closed_when_the_sandbox_could_not_be_made(owned: list[Any]) -> None:
    async def main() -> None:
        with pytest.raises(ReadyTimeout):
            await Sandbox("owned?ready_s=10", wait_s=1).open()

    assert closes(owned, main()) == [1]


def test_it_is_closed_when_the_close_is_cancelled(owned: list[Any]) -> None:
    async def main() -> None:
        box = Sandbox("owned?close_s=5")
        await box.open()
        closing = asyncio.create_task(box.close())
        await asyncio.sleep(1)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert now_s() == 5, "the cleanup was carried to its end"

    assert closes(owned, main()) == [1]


def test_it_is_closed_when_the_sandboxs_own_close_fails(owned: list[Any]) -> None:
    async def main() -> None:
        box = Sandbox("owned?clings=true")
        await box.open()
        with pytest.raises(SandboxLost, match="something of it is left"):
            await box.close()

    assert closes(owned, main()) == [1]


# ---- os.fork

AFTER_FORK = """
import asyncio, os, sys
from excise.sandbox import Sandbox
from excise.substrates.fake import FakeSubstrate

VERBS = {
    "run": lambda box: box.run("true"),
    "read": lambda box: box.read("/etc/passwd"),
    "start": lambda box: box.start("true"),
    "snapshot": lambda box: box.snapshot(),
    "renew": lambda box: box.renew(1),
    "open": lambda box: box.open(),
    "close": lambda box: box.close(),
}

async def in_child(box, unopened):
    for name, verb in VERBS.items():
        try:
            await verb(box)
        except RuntimeError as error:
            assert "before os.fork()" in str(error), error
        else:
            raise AssertionError(name)
    async with unopened:
        assert (await unopened.run("echo child")).stdout == b"child\\n"

async def main():
    unopened = Sandbox(FakeSubstrate())
    async with Sandbox(FakeSubstrate()) as box:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                asyncio.run(in_child(box, unopened))
                code = 0
            finally:
                if code:
                    import traceback
                    traceback.print_exc()
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert (await box.run("echo parent")).stdout == b"parent\\n"

asyncio.run(main())
"""


def test_after_os_fork_the_child_is_refused_at_once_and_the_parent_goes_on() -> None:
    done = subprocess.run([sys.executable, "-c", AFTER_FORK], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
