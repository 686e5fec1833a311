import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import excise
from excise import Sandbox, Spec, Step
from excise.action import Batch, End, Exec, Read, Shell, Write
from excise.errors import SpecError
from excise.workloads.registry import make
from excise.workloads.workload import Workload, own_image


def written(path: Path, *lines: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


async def faults(workload: Workload, address: str) -> list[str | None]:
    async with Sandbox(address, workload.spec("host")) as box:
        return [turn.expect.fault(await box.run(turn.action)) for turn in workload.turns("n")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.jsonl"


def test_what_was_recorded_runs_again(path: Path) -> None:
    async def record() -> None:
        with excise.record(actions=path):
            async with Sandbox("local", Spec(steps=(Step("files", (Write("a/b", b"12"),)),))) as box:
                await box.run("cat a/b; exit 3")
                with pytest.raises(FileNotFoundError):
                    await box.read("c")
                await box.write("c", b"x")
                await box.read("c")
                await box.run("sleep 1000", timeout_s=0.2)

    asyncio.run(record())
    workload = make(str(path))
    assert asyncio.run(faults(workload, "local")) == [None] * 5
    assert isinstance(workload.turns("n")[1].action, Batch)
    assert workload.turns("n")[4].expect.end is End.TIMED_OUT


def test_other_work_is_told(path: Path) -> None:
    workload = make(written(path, {"run": "exit 1", "exit_code": 0}, {"run": "exit 1"}))
    assert asyncio.run(faults(workload, "local")) == ["exit code 1, not 0", None]


def test_one_can_write_it_by_hand(path: Path) -> None:
    workload = make(
        written(path, {"run": "ls", "think_s": 1.5}, {"run": ["cat", "x"]}, {"action": {"action": "read", "path": "x"}})
    )
    turns = workload.turns("n")
    assert [turn.action for turn in turns] == [Shell("ls", timeout_s=600.0), Exec(("cat", "x"), timeout_s=600.0), Read("x")]
    assert [turn.think_s for turn in turns] == [1.5, 0.0, 0.0]
    assert workload.spec("host") == Spec()


def test_the_image_is_the_recordings_unless_another_is_named(path: Path) -> None:
    workload = make(written(path, {"start": {"image": "excise/base", "workdir": "/work"}}, {"run": "ls"}))
    assert own_image(workload) == "excise/base"
    assert workload.spec("other") == Spec(image="other", workdir="/work")


def test_one_sandbox_of_several_is_chosen_by_its_name(path: Path) -> None:
    lines = [{"sandbox": name, **line} for name in ("aa11", "bb22") for line in ({"start": {}}, {"run": f"echo {name}"})]
    text = written(path, *lines)
    with pytest.raises(
        SpecError, match=r"has several sandboxes: aa11 \(1 actions\), bb22 \(1 actions\); choose one with \?sandbox="
    ):
        make(text)
    chosen = make(f"{text}?sandbox=bb")
    assert chosen.turns("n")[0].action == Shell("echo bb22", timeout_s=600.0)
    assert "sandbox=bb" in chosen.name
    with pytest.raises(SpecError, match="has no sandbox cc; it has: aa11, bb22"):
        make(f"{text}?sandbox=cc")


def test_its_name_says_which_contents_were_measured(path: Path) -> None:
    before = make(written(path, {"run": "ls"})).name
    assert make(before).name == before
    written(path, {"run": "ls -l"})
    assert make(str(path)).name != before
    with pytest.raises(SpecError, match=r"t.jsonl was changed since: its sha256 begins with .*; leave sha256= out to use it"):
        make(before)


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ([], "t.jsonl has no action; record a run that has some"),
        ([{"start": {}}], "has no action"),
        ([{"verb": "upload"}], "the run had an upload, which a trajectory cannot repeat"),
        ([{"start": {"snapshot": True}}, {"run": "ls"}], "began from a snapshot"),
        ([{"think_s": 1}], "a line has neither action nor run"),
    ],
)
def test_what_cannot_be_repeated_is_one_sentence(path: Path, lines: list[dict[str, Any]], sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        make(written(path, *lines))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("nowhere.jsonl", "the workload nowhere.jsonl cannot be read: No such file or directory"),
        ("./t.txt", "./t.txt is no workload: a file is a description"),
        ("t.jsonl?colour=red", "t.jsonl has no option 'colour'; its options: sandbox, sha256"),
    ],
)
def test_a_wrong_path_is_one_sentence(text: str, sentence: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(path, {"run": "ls"})
    monkeypatch.chdir(path.parent)
    with pytest.raises(SpecError, match=sentence):
        make(text)


# ---- mini-swe-agent


def saved(path: Path, *messages: dict[str, Any], **environment: Any) -> str:
    info = {"config": {"environment": environment, "model": {"api_key": "hunter2"}}}
    path.write_text(json.dumps({"info": info, "messages": messages, "trajectory_format": "mini-swe-agent-1.1"}))
    return str(path)


def asks(command: str, at_s: float) -> dict[str, Any]:
    extra = {"actions": [{"command": command, "tool_call_id": "1"}], "timestamp": at_s, "cost": 0.1}
    return {"role": "assistant", "content": None, "extra": extra}


def answers(code: int, at_s: float, **more: Any) -> dict[str, Any]:
    return {"role": "tool", "content": "...", "extra": {"returncode": code, "timestamp": at_s, "raw_output": "x", **more}}


def test_mini_swe_agents_commands_and_pauses(tmp_path: Path) -> None:
    text = saved(
        tmp_path / "x.traj.json",
        {"role": "system", "content": "You fix bugs."},
        {"role": "user", "content": "Fix it."},
        asks("ls", 100.0),
        answers(0, 100.5),
        asks("false", 103.0),
        answers(1, 103.5),
        asks("sleep 100", 105.5),
        answers(-1, 135.5, exception_info="timed out"),
        asks("echo DONE", 136.0),
        {"role": "exit", "content": "", "extra": {"exit_status": "Submitted", "submission": ""}},
        image="python:3.11",
        cwd="/testbed",
        timeout=30,
        env={"TOKEN": "hunter2"},
    )
    workload = make(text)
    turns = workload.turns("n")
    scripts = [turn.action.script for turn in turns if isinstance(turn.action, Shell)]
    assert scripts == ["ls", "false", "sleep 100", "echo DONE"]
    assert turns[0].action == Shell("ls", timeout_s=30.0, merge=True)
    assert [turn.expect.exit_code for turn in turns] == [0, 1, None, None]
    assert [turn.think_s for turn in turns] == [0.0, 2.5, 2.0, 0.5]
    assert own_image(workload) == "python:3.11"
    assert workload.spec("host").workdir == "/testbed"
    assert workload.spec("host").env == {}


def test_its_first_versions_files(tmp_path: Path) -> None:
    """They have no more than texts: the command in a block, the exit code in a tag."""
    text = saved(
        tmp_path / "x.json",
        {"role": "assistant", "content": "THOUGHT: look\n\n```bash\nls -l\ncat x\n```"},
        {"role": "user", "content": "<returncode>2</returncode>\n<output>\n</output>"},
        {"role": "assistant", "content": "I am done."},
    )
    (turn,) = make(text).turns("n")
    assert turn.action == Shell("ls -l\ncat x", timeout_s=600.0, merge=True)
    assert turn.expect.exit_code == 2


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("[]", "x.json is not a trajectory that mini-swe-agent saved: Expected `object`, got `array`"),
        ("{", "is not a trajectory that mini-swe-agent saved: Input data was truncated"),
        ('{"messages": [{"role": "user", "content": "hi"}]}', "x.json has no command of a model in it"),
    ],
)
def test_another_json_is_one_sentence(tmp_path: Path, content: str, sentence: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(SpecError, match=sentence):
        make(str(tmp_path / "x.json"))
