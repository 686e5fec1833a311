"""The blocking face: any number of threads, the same errors, and Ctrl-C that leaves nothing behind."""

import inspect
import io
import os
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from excise import api, sandbox, substrate, sync
from excise.action import Exit, Output, Shell
from excise.errors import CreateError, SandboxLost, SpecError
from excise.spec import Spec
from excise.substrates.fake import FakeSubstrate
from excise.substrates.fake.image import WORKDIR
from excise.substrates.fake.proc import Proc
from excise.sync import Process, Sandbox, connect, probe


def public(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")}


# ---- the same, blocking


def test_nothing_of_the_asynchronous_face_is_missing() -> None:
    assert public(sandbox.Sandbox) - public(Sandbox) == set()
    assert public(substrate.Process) - public(Process) == {"events"}, "one iterates the process itself"
    assert public(substrate.Connection) - public(sync.Connection) == set()


@pytest.mark.parametrize("name", sorted(public(sandbox.Sandbox) - {"id"}))
def test_a_method_takes_what_its_namesake_takes(name: str) -> None:
    ours, theirs = (inspect.signature(getattr(kind, name)).parameters for kind in (Sandbox, sandbox.Sandbox))
    assert [(p.name, p.kind, p.default) for p in ours.values()] == [(p.name, p.kind, p.default) for p in theirs.values()]
    assert inspect.signature(Sandbox).parameters.keys() == inspect.signature(sandbox.Sandbox).parameters.keys()


def test_one_sandbox_from_open_to_close() -> None:
    made = FakeSubstrate()
    box = Sandbox(made, Spec(env={"A": "a"}), ttl_s=100)
    box.open()
    assert box.run("echo $A").stdout == b"a\n"
    assert box.run("pwd", session="main", timeout_s=5).stdout == b"/work\n"
    box.write("d/f", "text", mode=0o600)
    box.move("d/f", "d/g")
    assert box.read("d/g") == b"text"
    assert ([entry.name for entry in box.list("d")], box.stat("d/g").mode & 0o777) == (["g"], 0o600)
    box.make_dir("e")
    saved = box.snapshot()
    box.remove("d", recursive=True)
    assert [(one.path, one.kind) for one in box.diff(saved)] == [(f"{WORKDIR}/d", "deleted")]
    assert "deleted file mode 100644\n" in box.diff(saved, patch=True)
    box.reset(saved)
    assert box.read("d/g") == b"text"
    box.pause()
    box.resume()
    box.renew(10)
    assert box.id == "fake-1"
    box.close()
    box.close()
    with pytest.raises(RuntimeError, match="not open"):
        box.run("true")


def test_many_threads_share_one_substrate() -> None:
    with connect("local") as shared:

        def rollouts(number: int) -> list[bytes]:
            seen: list[bytes] = []
            for turn in range(3):
                with Sandbox(shared) as box:
                    box.write("f", f"{number} {turn}")
                    seen.append(box.run(["cat", "f"]).stdout)
            return seen

        with ThreadPoolExecutor(32) as threads:
            seen = list(threads.map(rollouts, range(32)))
    assert seen == [[f"{number} {turn}".encode() for turn in range(3)] for number in range(32)]


def test_connect_closes_what_it_made_also_on_an_error() -> None:
    seen: list[Any] = []

    def fail() -> None:
        with connect("fake") as made:
            Sandbox(made).open()
            seen.extend((made, sync._wait(made.list({}))))
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fail()
    made, listed = seen
    assert len(listed) == 1
    assert sync._wait(made.list({})) == ()


def test_probe() -> None:
    with connect("fake") as made:
        assert probe(made).sessions


# ---- errors


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (lambda box: box.read("/nowhere"), FileNotFoundError),
        (lambda box: box.run("true", timeout=1), SpecError),
        (lambda box: box.connect(80), ConnectionRefusedError),
        (lambda box: box.fork(0).__enter__(), SpecError),
        (lambda box: list(box.download("/nowhere")), FileNotFoundError),
    ],
)
def test_an_error_is_the_one_the_asynchronous_face_raises(ask: Any, error: type[Exception]) -> None:
    with Sandbox(FakeSubstrate()) as box, pytest.raises(error):
        ask(box)


def test_a_lost_sandbox_is_told_and_still_closed() -> None:
    made = FakeSubstrate(lose=1)
    with pytest.raises(SandboxLost), Sandbox(made) as box:
        box.run("true")
    assert sync._wait(made.list({})) == ()


def test_a_sandbox_that_cannot_be_made_is_told() -> None:
    with pytest.raises(CreateError, match="fail_create"), Sandbox(FakeSubstrate(fail_create=1)):
        pass


def test_the_callers_own_error_comes_back_as_itself() -> None:
    mine = ValueError("mine")

    def broken_tar() -> Iterator[bytes]:
        yield bytes(512)
        raise mine

    with Sandbox(FakeSubstrate()) as box:
        with pytest.raises(ValueError, match="mine") as raised:
            box.upload("/work", broken_tar())
        assert raised.value is mine
        assert box.run("true").ok


# ---- streams


def test_a_process_is_read_as_it_speaks_and_spoken_to() -> None:
    with Sandbox("local") as box:
        process = box.start('while read line; do echo "<$line>"; done; echo end >&2; exit 3')
        assert process.id
        process.write(b"one\n")
        assert next(process) == Output("stdout", b"<one>\n")
        process.write(b"two\n")
        assert next(process) == Output("stdout", b"<two>\n")
        process.close_stdin()
        *outputs, last = list(process)
        assert outputs == [Output("stderr", b"end\n")]
        assert isinstance(last, Exit)
        assert last.observation.exit_code == 3


def test_a_process_is_waited_for_signalled_and_killed() -> None:
    with Sandbox("local") as box:
        assert box.start("echo out").wait().stdout == b"out\n"
        signalled = box.start(["sleep", "1000"])
        signalled.signal(signal.SIGTERM)
        assert signalled.wait().signal == signal.SIGTERM
        killed = box.start("sleep 1000")
        killed.kill()
        assert killed.wait().signal == signal.SIGKILL


def tree_as_tar(files: dict[str, bytes]) -> Iterator[bytes]:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    whole.seek(0)
    while piece := whole.read(700):
        yield piece


def test_a_tree_goes_up_and_comes_down() -> None:
    files = {"a": b"\0\xff" * 5000, "b": b"", "ü": b"text"}
    with Sandbox("local") as box:
        box.make_dir("up")
        box.upload("up", tree_as_tar(files))
        with tarfile.open(fileobj=io.BytesIO(b"".join(box.download("up")))) as tar:
            found = {member.name: member for member in tar if member.isfile()}
            down = {name.removeprefix("up/"): _bytes_of(tar, member) for name, member in found.items()}
    assert down == files


def _bytes_of(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    data = tar.extractfile(member)
    assert data is not None
    return data.read()


def test_one_sandboxs_download_is_anothers_upload() -> None:
    with Sandbox(FakeSubstrate()) as source, Sandbox(FakeSubstrate()) as target:
        source.write("d/f", b"x" * 100_000)
        target.upload("/work", source.download("d"))
        assert target.read("d/f") == b"x" * 100_000


def test_a_port_is_reached() -> None:
    listen = Shell("perl -e 'LocalPort => 80; open(F, q(>), q(up))'")
    with Sandbox(FakeSubstrate(), Spec(boot=(listen,), ready=(Shell("test -e up"),))) as box:
        connection = box.connect(80)
        connection.write(b"hello\n")
        assert connection.read() == b"hello\n"
        connection.close()


def test_a_group_is_forked_and_closed_together() -> None:
    made = FakeSubstrate()
    with Sandbox(made) as box:
        box.write("f", b"x")
        with box.fork(3) as siblings:
            assert [one.read("f") for one in siblings] == [b"x"] * 3
        with pytest.raises(ValueError, match="mine"), box.fork(3):
            raise ValueError("mine")
        assert [one.id for one in sync._wait(made.list({}))] == [box.id]


def test_a_group_is_gone_when_its_block_ends() -> None:
    with Sandbox(FakeSubstrate(close_s=0.05)) as box, api.record() as trace:
        with box.fork(3):
            pass
        cleanups = [span for span in trace.spans if span.name == "cleanup"]
        assert [span.outcome for span in cleanups] == ["ok"] * 3


# ---- recording


def test_spans_land_in_the_trace_of_the_thread_that_made_the_call() -> None:
    made = FakeSubstrate()

    def rollout(actions: int) -> list[str]:
        with api.record() as trace:
            with Sandbox(made) as box:
                for _ in range(actions):
                    box.run("true")
            return [span.name for span in trace.spans]

    with api.record() as mine, ThreadPoolExecutor(4) as threads:
        seen = list(threads.map(rollout, range(4)))
        with Sandbox(made):
            pass
    assert seen == [["create", "ready", *["action"] * actions, "cleanup"] for actions in range(4)]
    assert [span.name for span in mine.spans] == ["create", "ready", "cleanup"]


# ---- interruptions


class AlarmError(Exception):
    """What a user's own alarm clock raises."""


@contextmanager
def on_signal(error: BaseException) -> Generator[None]:
    """Within the block the first SIGUSR1 raises `error` in the main thread, as Ctrl-C and alarm clocks do."""
    struck = False

    def strike(*_: object) -> None:
        nonlocal struck
        if not struck:
            struck = True
            raise error

    before = signal.signal(signal.SIGUSR1, strike)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


async def knock(proc: Proc, _: list[str]) -> int:
    # Again and again: a signal that comes just before the main thread begins to wait does not wake it.
    while True:
        signal.pthread_kill(main_thread(), signal.SIGUSR1)
        await proc.sleep(0.02)


class Knocking(FakeSubstrate):
    """Signals a thread when a sandbox is made of it. The main thread wakes of it at once, others only note it."""

    def __init__(self, whom: Callable[[], int], **options: Any) -> None:
        super().__init__(**options)
        self._whom = whom
        self.armed = True

    async def create(self, *words: Any, **options: Any) -> Any:
        if self.armed:
            signal.pthread_kill(self._whom(), signal.SIGUSR1)
        return await super().create(*words, **options)


def main_thread() -> int:
    return threading.main_thread().ident or 0


ERRORS = pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), AlarmError()], ids=repr)


@ERRORS
def test_an_interrupted_action_is_over_when_the_interruption_arrives(error: BaseException) -> None:
    made = FakeSubstrate()
    made.install("knock", knock)
    with on_signal(error), Sandbox(made) as box:
        with pytest.raises(type(error)) as raised:
            box.run("sleep 1000 & knock")
        assert raised.value is error
        assert sync._wait(made.attach(box.id)).machine.processes == {}
        assert box.run("echo on").stdout == b"on\n"


@pytest.mark.parametrize("whom", [main_thread, threading.get_ident], ids=["while it opens", "when it is open"])
@ERRORS
def test_an_interrupted_open_leaves_no_sandbox(error: BaseException, whom: Callable[[], int]) -> None:
    made = Knocking(whom, ready_s=0.1, close_s=0.05)
    with api.record() as trace, on_signal(error), pytest.raises(type(error)), Sandbox(made):
        pass
    assert [(span.name, bool(span.end_ns)) for span in trace.spans][::2] == [("create", True), ("cleanup", True)]
    assert sync._wait(made.list({})) == ()


@pytest.mark.parametrize("whom", [main_thread, threading.get_ident], ids=["while it is made", "when it is made"])
def test_an_interrupted_fork_leaves_no_sibling(whom: Callable[[], int]) -> None:
    made = Knocking(whom, ready_s=0.1, close_s=0.05)
    made.armed = False
    with Sandbox(made) as box:
        made.armed = True
        with on_signal(AlarmError()), pytest.raises(AlarmError), box.fork(2):
            pass
        assert [one.id for one in sync._wait(made.list({}))] == [box.id]
        assert made._snapshots == {}


INTERRUPTED = """
import sys
from excise.sync import Sandbox, connect

with connect("local") as substrate, Sandbox(substrate) as box:
    box.run(f"echo $$ > {sys.argv[1]}; exec sleep 1000")
"""


@pytest.mark.parametrize("whom", ["the process", "its group"])
def test_control_c_ends_a_program_and_all_it_started(whom: str, tmp_path: Path) -> None:
    fifo = tmp_path / "started"
    os.mkfifo(fifo)
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(fifo)], stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as program:
        try:
            sandboxed = int(fifo.read_text())
            (os.kill if whom == "the process" else os.killpg)(program.pid, signal.SIGINT)
            _, printed = program.communicate(timeout=60)
        finally:
            program.kill()
    assert program.returncode == -signal.SIGINT
    assert printed.rstrip().endswith("KeyboardInterrupt")
    assert not Path(f"/proc/{sandboxed}").exists()


# ---- os.fork

AFTER_FORK = """
import os
from excise.substrates.fake import FakeSubstrate
from excise.sync import Sandbox

with Sandbox(FakeSubstrate()) as box:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            box.run("true")
        except RuntimeError as error:
            with Sandbox(FakeSubstrate()) as own:
                code = 0 if own.run("true").ok and "before os.fork()" in str(error) else 2
        finally:
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), box.run("true").ok)
"""


def test_after_os_fork_a_child_has_a_loop_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", AFTER_FORK], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("0 True\n", "")


def test_all_threads_share_one_loop() -> None:
    with connect("fake") as made, ThreadPoolExecutor(8) as threads:

        def look(_: int) -> bool:
            with Sandbox(made) as box:
                return box.run("true").ok

        assert all(threads.map(look, range(16)))
        assert [thread.name for thread in threading.enumerate()].count("excise") == 1
