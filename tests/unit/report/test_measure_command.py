"""`excise measure` as a user runs it, on `local`, which runs everywhere."""

import subprocess
import sys

import pytest

from excise.meter.results import load

INTERRUPTED = """
import signal, sys
from excise.cli.entry import main
signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
signal.setitimer(signal.ITIMER_REAL, 4)
sys.exit(main(sys.argv[1:]))
"""


def excise(*arguments, script="import sys; from excise.cli.entry import main; sys.exit(main(sys.argv[1:]))", cwd=None):
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=cwd)


def test_the_table_is_on_stdout_and_nothing_else_is(tmp_path):
    done = excise("measure", "local", "--reference", "local", "--workload", "t0", "--blocks", 1, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("substrate")
    assert done.stderr == ""
    where = done.stdout.splitlines()[-1].removeprefix("Results: ")
    assert len(load(tmp_path / where).trials) == 2


def test_markdown(tmp_path):
    done = excise("measure", "local", "--reference", "local", "--blocks", 1, "--out", tmp_path / "out", "--markdown")
    assert done.stdout.startswith("| substrate |")


def test_ctrl_c_keeps_whole_blocks_and_prints_their_table(tmp_path):
    done = excise(
        "measure",
        "local",
        "--reference",
        "local",
        "--workload",
        "t0",
        "--budget",
        600,
        "--out",
        tmp_path / "out",
        script=INTERRUPTED,
    )
    assert done.returncode == 130
    assert done.stdout.startswith("substrate")
    assert done.stderr.endswith("excise: ended early; its sandboxes were closed\n")
    assert f"--resume {tmp_path / 'out'}" in done.stderr
    assert len(load(tmp_path / "out").trials) >= 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nosuch"], "no substrate is called 'nosuch'"),
        (["local", "--blocks", "0"], "a run has at least one block"),
        (["local", "--workload", "t9"], "no workload is called 't9'"),
        (["local", "--bogus"], "--bogus"),
    ],
)
def test_a_wrong_request_is_one_sentence_and_exit_2(tmp_path, arguments, sentence):
    done = excise("measure", *arguments, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_named_address_that_cannot_run_is_exit_1_and_the_others_are_measured(tmp_path):
    address = "docker?host=unix:///nowhere.sock"
    done = excise("measure", "local", address, "--reference", "local", "--blocks", 1, "--out", tmp_path / "out")
    assert done.returncode == 1
    assert done.stdout.startswith("substrate")
    assert f"Skipped {address}: " in " ".join(done.stdout.split())
