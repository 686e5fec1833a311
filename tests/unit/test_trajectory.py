import asyncio
import contextvars
import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import excise
from excise import Sandbox, Spec, Step
from excise.action import Batch, Exec, Read, Shell, Write
from excise.errors import SpecError
from excise.spec import Limits, Mount, Secret, Stage
from excise.sync import Sandbox as Blocking
from excise.trajectory import Line, Start, encode, read


def recorded(path: Path, work: Any, spec: Spec | None = None) -> tuple[Line, ...]:
    """What `work` does with a sandbox, as lines."""

    async def go() -> None:
        with excise.record(actions=path):
            async with Sandbox("fake", spec) as box:
                await work(box)

    asyncio.run(go())
    return read(path)


def test_every_action_is_a_line_with_its_exit_code(tmp_path: Path) -> None:
    async def work(box: Sandbox) -> None:
        await box.run("exit 3")
        await box.run(["echo", "a"], timeout_s=5)
        await box.write("f", b"\xff\0")
        await box.read("f")
        await box.run(Batch((Read("f"), Exec(("true",)))))

    start, *lines = recorded(tmp_path / "t.jsonl", work)
    assert start.start == Start()
    assert [line.action for line in lines] == [
        Shell("exit 3", timeout_s=600.0),
        Exec(("echo", "a"), timeout_s=5),
        Write("f", b"\xff\0"),
        Read("f"),
        Batch((Read("f"), Exec(("true",)))),
    ]
    assert [line.exit_code for line in lines] == [3, 0, 0, 0, 0]
    assert len({line.sandbox for line in (start, *lines)}) == 1


def test_how_it_ended_where_it_did_not_exit(tmp_path: Path) -> None:
    async def work(box: Sandbox) -> None:
        await box.run("sleep 1000", timeout_s=0.5)
        with pytest.raises(FileNotFoundError):
            await box.read("nowhere")

    _, late, absent = recorded(tmp_path / "t.jsonl", work)
    assert (late.end.value, late.exit_code) == ("timed_out", None)
    assert (absent.errno, absent.exit_code) == (2, None)


def test_a_streamed_command_is_a_line_too_and_an_upload_is_named(tmp_path: Path) -> None:
    async def work(box: Sandbox) -> None:
        await (await box.start("true")).wait()
        await box.upload(".", _no_files())

    _, streamed, upload = recorded(tmp_path / "t.jsonl", work)
    assert streamed.action == Shell("true", timeout_s=600.0)
    assert streamed.exit_code is None
    assert (upload.verb, upload.action) == ("upload", None)


async def _no_files() -> AsyncGenerator[bytes]:
    yield bytes(10240)


def test_pauses_are_those_between_the_verbs(tmp_path: Path) -> None:
    async def work(box: Sandbox) -> None:
        await box.run("true")
        await asyncio.sleep(0.2)
        await box.run("true")
        await asyncio.gather(box.run("true"), box.run("true"))

    _, first, second, third, fourth = recorded(tmp_path / "t.jsonl", work)
    assert second.think_s >= 0.2
    assert min(first.think_s, third.think_s, fourth.think_s) >= 0.0
    assert fourth.think_s == 0.0  # it began while the third ran


def test_the_start_state_is_in_it_and_nothing_of_this_host(tmp_path: Path) -> None:
    spec = Spec(
        env={"A": "b"},
        steps=(Step("files", (Write("x", b"1"),), Stage.REPO),),
        limits=Limits(pids=7),
        mounts=(Mount(str(tmp_path), "/mnt/x"),),
        labels={"who": "me"},
    )

    async def nothing(_: Sandbox) -> None: ...

    (line,) = recorded(tmp_path / "t.jsonl", nothing, spec)
    assert line.start == Start(env={"A": "b"}, steps=spec.steps, limits=Limits(pids=7))
    assert str(tmp_path) not in (tmp_path / "t.jsonl").read_text()


def test_no_secret_is_in_it(tmp_path: Path) -> None:
    spec = Spec(secrets={"KEY": Secret("hunter2"), "LONG": Secret("hunter2-long"), "NONE": Secret("")}, env={"X": "a hunter2"})

    async def work(box: Sandbox) -> None:
        await box.run("echo hunter2-long hunter2", env={"OTHER": "hunter2"}, stdin=b"hunter2")
        await box.write("hunter2.txt", b"\xffhunter2")
        await box.run(["echo", "hunter2"])

    start, script, written, words = recorded(tmp_path / "t.jsonl", work, spec)
    text = (tmp_path / "t.jsonl").read_text()
    assert "hunter2" not in text
    assert "aHVudGVyMg" not in text  # as base64
    assert start.start is not None
    assert start.start.env == {"X": "a ***"}
    assert script.action == Shell("echo *** ***", env={"OTHER": "***"}, stdin=b"***", timeout_s=600.0)
    assert written.action == Write("***.txt", b"\xff***")
    assert words.action == Exec(("echo", "***"), timeout_s=600.0)


def test_the_file_is_its_owners(tmp_path: Path) -> None:
    async def nothing(_: Sandbox) -> None: ...

    recorded(tmp_path / "t.jsonl", nothing)
    assert (tmp_path / "t.jsonl").stat().st_mode & 0o777 == 0o600


def test_sandboxes_of_threads_share_a_file_without_mixing_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"

    def work() -> None:
        with Blocking("fake") as box:
            for _ in range(20):
                box.write("f", bytes(20_000))

    with excise.record(actions=path) as trace:
        threads = [threading.Thread(target=contextvars.copy_context().run, args=(work,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    lines = read(path)
    assert len(lines) == 4 * 21
    assert len({line.sandbox for line in lines}) == 4
    assert len(trace.spans) > 4 * 20


def test_the_variable_does_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXCISE_RECORD", str(tmp_path / "t.jsonl"))
    with Blocking("fake") as box:
        box.run("true")
    assert len(read(tmp_path / "t.jsonl")) == 2


def test_nothing_is_written_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with excise.record(), Blocking("fake") as box:
        box.run("true")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_one_sentence_and_leaves_no_sandbox(tmp_path: Path) -> None:
    async def nothing(_: Sandbox) -> None: ...

    with pytest.raises(
        SpecError, match=r"the trajectory cannot be written to .*: No such file or directory; name another file"
    ):
        recorded(tmp_path / "nowhere" / "t.jsonl", nothing)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"run": "ls"}\n{"run": 3}\n', "t.jsonl line 2 is not a trajectory's: Expected .*; one looks like"),
        ('{"run": "ls"}\nhello\n', "line 2 is not a trajectory's: JSON is malformed"),
        ('{"rum": "ls"}\n', "line 1 is not a trajectory's: Object contains unknown field `rum`"),
        ('{"action": {"action": "exec", "argv": []}}\n', "line 1 is not a trajectory's: .*argv is empty"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    with pytest.raises(SpecError, match=sentence):
        read(path)


def test_a_line_reads_back_as_it_was(tmp_path: Path) -> None:
    lines = (
        Line(start=Start(image="x", steps=(Step("s", (Shell("a", session="m"),)),))),
        Line(action=Batch((Write("p", b"\0\xff", mode=0o600), Exec(("a",), env={"x": "y"}, timeout_s=1.5)))),
        Line(run=("a", "b"), think_s=1.25, exit_code=3),
    )
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"\n".join(map(encode, lines)))
    assert read(path) == lines
    assert b"null" not in path.read_bytes()
    assert msgspec.json.decode(encode(lines[2])) == {"run": ["a", "b"], "think_s": 1.25, "exit_code": 3}
