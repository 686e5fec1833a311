"""Two programs as others write them, over the seam: an agent framework's own loop, and an evaluation from many threads."""

import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from excise import SandboxLost, Spec
from excise.sync import Sandbox

EXAMPLES = Path(__file__).parents[2] / "examples"
GUESTS = ["namespace", "docker+guest"]


@pytest.fixture
def mini(must_work: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the example defines; mini-swe-agent makes its directory on import, so it is given one."""
    if find_spec("minisweagent") is None:
        must_work("mini-swe-agent", "pip install --no-deps mini-swe-agent, and excise[consumers]")
    monkeypatch.setenv("MSWEA_GLOBAL_CONFIG_DIR", str(tmp_path))
    return runpy.run_path(str(EXAMPLES / "mini_swe_agent.py"))


def example(name: str, address: str, **env: str) -> str:
    argv = [sys.executable, "-W", "error::ResourceWarning", str(EXAMPLES / name), address]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=100, env={**os.environ, **env})
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


# ---- mini-swe-agent


@pytest.mark.parametrize("address", ["fake", "local", "chroot", *GUESTS])
def test_mini_swe_agent(address: str, runs_here: Callable[[str], None], mini: dict[str, Any], tmp_path: Path) -> None:
    del mini
    runs_here(address)
    assert example("mini_swe_agent.py", address, MSWEA_GLOBAL_CONFIG_DIR=str(tmp_path)) == "Submitted hello world\n"


@pytest.mark.parametrize("address", ["local", "chroot", *GUESTS])
def test_what_its_model_reads(address: str, runs_here: Callable[[str], None], mini: dict[str, Any]) -> None:
    """Both streams in their order, the exit code, a command that never ends, one that leaves something running."""
    runs_here(address)
    commands = ("echo a; echo b >&2; echo c; exit 3", "echo begun; sleep 1000", "sleep 1000 & echo left", "kill -9 $$")
    with Sandbox(address, Spec(image="host")) as box:
        agent = mini["agent"](box, *commands, f"echo {mini['FINISHED']}", timeout_s=2.0)
        assert agent.run("x")["exit_status"] == "Submitted"
    read = [message["content"] for message in agent.messages if message["role"] == "user"][1:]
    assert read == [
        "<returncode>3</returncode>\n<output>\na\nb\nc\n</output>",
        "<exception>timed_out</exception>\n<returncode>137</returncode>\n<output>\nbegun\n</output>",
        "<returncode>0</returncode>\n<output>\nleft\n</output>",
        "<exception>signaled</exception>\n<returncode>137</returncode>\n<output>\n</output>",
    ]


def test_a_lost_sandbox_ends_its_run_and_is_no_return_code(mini: dict[str, Any]) -> None:
    with Sandbox("fake?lose=1.0") as box:
        agent = mini["agent"](box, "true", f"echo {mini['FINISHED']}")
        with pytest.raises(SandboxLost):
            agent.run("x")
    assert [message["role"] for message in agent.messages] == ["system", "user", "assistant", "exit"]
    assert agent.messages[-1]["extra"]["exit_status"] == "SandboxLost"


# ---- many threads


@pytest.mark.parametrize("address", ["chroot", *GUESTS])
def test_an_evaluation_from_32_threads(address: str, runs_here: Callable[[str], None]) -> None:
    runs_here(address)
    assert example("swe_bench.py", address) == f"{[float(n % 4 != 0) for n in range(32)]}\n"
