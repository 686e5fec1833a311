"""`excise record`: a program's own rollouts, written down, and measured again."""

import json
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from excise import Spec
from excise.action import Shell
from excise.sync import Sandbox
from excise.trajectory import read

TOP = Path(__file__).parents[2]
EXCISE = str(Path(sys.executable).parent / "excise")
PROGRAM = """
import sys, time
from excise import Spec
from excise.spec import Secret
from excise.sync import Sandbox
with Sandbox("local", Spec(secrets={"KEY": Secret("hunter2")})) as box:
    box.write("greeting.txt", "helo\\n")
    box.run("cat greeting.txt; echo hunter2 > key.txt")
    time.sleep(0.2)
    print(box.run("sed -i s/helo/hello/ greeting.txt && cat greeting.txt").text, end="")
sys.exit(int(sys.argv[1]))
"""


def excise(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([EXCISE, *words], capture_output=True, text=True, check=False, timeout=100)


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    (tmp_path / "program.py").write_text(PROGRAM)
    return [sys.executable, str(tmp_path / "program.py")]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "rollout.jsonl"


def test_a_program_is_recorded_as_it_is(program: list[str], out: Path) -> None:
    """Its output and its exit code are its own."""
    done = excise("record", "-o", str(out), "--", *program, "0")
    assert (done.returncode, done.stdout) == (0, "hello\n")
    assert done.stderr == f"excise: {out} holds the actions of each sandbox: 3 in 1\n"
    assert excise("record", "-o", str(out.with_name("b.jsonl")), "--", *program, "3").returncode == 3
    assert "hunter2" not in out.read_text()
    *_, last = read(out)
    assert last.think_s >= 0.2


def test_what_was_recorded_can_be_measured(program: list[str], out: Path, tmp_path: Path) -> None:
    assert excise("record", "-o", str(out), "--", *program, "0").returncode == 0
    results = tmp_path / "results"
    done = excise("measure", "local", "--workload", str(out), "--blocks", "1", "--out", str(results))
    assert done.returncode == 0, done.stderr
    trials = [json.loads(line) for line in (results / "trials.jsonl").read_text().splitlines()]
    measured = [trial for trial in trials if trial["cell"]["address"] == "local"]
    assert measured
    assert [trial.get("failure") for trial in measured] == [None] * len(measured)
    assert sum(span["name"] == "action" for span in measured[0]["spans"]) == 3


def test_every_process_of_a_program_adds_to_the_file(out: Path) -> None:
    both = f"{EXCISE} run local -- echo a & {EXCISE} run local -- echo b; wait"
    assert excise("record", "-o", str(out), "--", "sh", "-c", both).returncode == 0
    lines = read(out)
    assert len({line.sandbox for line in lines}) == 2
    assert len(lines) == 4


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["-o", "new.jsonl", "--", "true"], 1, "nothing was recorded: true opened no sandbox of excise"),
        (["-o", "old.jsonl", "--", "true"], 2, "old.jsonl is there already: name another file with -o"),
        (["-o", "new.txt", "--", "true"], 2, "give it a name that ends in .jsonl"),
        (["-o", "new.jsonl", "--", "no-such-program"], 2, "there is no program 'no-such-program'; name one after --"),
        (["-o", "new.jsonl"], 2, "give a command after --, or a trajectory to convert with --from"),
        (["-o", "new.jsonl", "--from", "nowhere.json"], 2, "nowhere.json cannot be read: No such file or directory"),
        (["-o", "new.jsonl", "--from", "old.jsonl"], 2, "old.jsonl is not a trajectory that mini-swe-agent saved"),
    ],
)
def test_a_wrong_request_is_one_sentence(
    words: list[str], code: int, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("old.jsonl").write_text("")
    done = excise("record", *words)
    assert done.returncode == code
    assert done.stderr.startswith("excise: ")
    assert done.stderr.count("\n") == 1
    assert sentence in done.stderr
    assert not Path("new.jsonl").exists()


def test_a_signal_reaches_the_program_and_its_sandbox_is_closed(out: Path, tmp_path: Path) -> None:
    began = tmp_path / "began"
    os.mkfifo(began)
    # Open at both ends from the start, so that nobody waits for the other for ever.
    pipe = os.open(began, os.O_RDWR)
    words = [EXCISE, "record", "-o", str(out), "--", EXCISE, "run", "local", "--shell", "--", f"echo > {began}; sleep 1000"]
    with subprocess.Popen(words, stderr=subprocess.PIPE) as running:
        assert os.read(pipe, 1) == b"\n"  # the command runs
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate(timeout=60)
    os.close(pipe)
    assert running.returncode == 143
    assert b"ended early; its sandboxes were closed" in said
    assert len(read(out)) == 2


def test_what_mini_swe_agent_saves_converts(
    must_work: Callable[[str, str], None], tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of its own making, from the agent of the example."""
    if find_spec("minisweagent") is None:
        must_work("mini-swe-agent", "pip install --no-deps mini-swe-agent, and excise[consumers]")
    monkeypatch.setenv("MSWEA_GLOBAL_CONFIG_DIR", str(tmp_path))
    example = runpy.run_path(str(TOP / "examples" / "mini_swe_agent.py"))
    saved = tmp_path / "agent.traj.json"
    with Sandbox("local", Spec()) as box:
        agent = example["agent"](box, "echo a > f", "cat f; exit 3", f"echo {example['FINISHED']}")
        agent.run("x")
        agent.save(saved)
    done = excise("record", "-o", str(out), "--from", str(saved))
    assert (done.returncode, done.stderr) == (0, f"excise: {out} holds its actions: 3\n")
    _, *lines = read(out)
    assert [line.action.script for line in lines if isinstance(line.action, Shell)] == [
        "echo a > f",
        "cat f; exit 3",
        f"echo {example['FINISHED']}",
    ]
    assert [line.exit_code for line in lines] == [0, 3, None]
