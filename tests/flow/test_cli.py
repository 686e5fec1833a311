"""The command line as a user meets it: another process, its output and its exit code."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

EXCISE = str(Path(sys.executable).parent / "excise")


def excise(*words: str, stdin: bytes = b"", **env: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [EXCISE, *words], input=stdin, capture_output=True, env={**os.environ, **env}, check=False, timeout=100
    )


def one_sentence(done: subprocess.CompletedProcess[bytes]) -> str:
    """What a failed command said: a single line of ours, and no traceback."""
    said = done.stderr.decode()
    assert said.startswith("excise: "), said
    assert said.count("\n") == 1, said
    assert "Traceback" not in said
    return said


# ---- help

LOOKING_IN = ["ps", "shell", "cp", "diff", "logs", "rm"]
COMMANDS = [
    "measure",
    "report",
    "project",
    "compare",
    "advise",
    "record",
    "run",
    *LOOKING_IN,
    "snapshots",
    "pool",
    "serve",
    "image",
    "check",
    "doctor",
    "gc",
]


def test_help_has_three_groups_in_order() -> None:
    shown = excise("--help").stdout.decode()
    titles = [line.split()[1] for line in shown.splitlines() if line.startswith("╭")]
    assert titles == ["Measure", "Use", "Care"]
    commands = [line.split()[1] for line in shown.splitlines() if line.startswith("│ ") and line[2] != " "]
    assert commands == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_examples(command: str) -> None:
    done = excise(command, "--help")
    assert done.returncode == 0
    assert f"  excise {command}" in done.stdout.decode().partition("Examples:")[2]


def test_help_loads_no_command() -> None:
    """`excise --help` stays quick because each command's module, and the engines behind it, load when it runs."""
    script = (
        "import sys; from excise.cli import main; main_result = 0\n"
        "sys.argv = ['excise', '--help']; main()\n"
        "print(*sorted(m for m in sys.modules if m.startswith(('excise.', 'aiodocker', 'msgspec'))), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert loaded == {"excise.cli", "excise.cli.entry", "excise.cli.sentences", "excise.errors"}


def test_version() -> None:
    assert excise("--version").stdout.split() == [b"0.1.0"]


# ---- wrong requests


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["nonsense"], "nonsense"),
        (["run", "nonsense", "--", "true"], "no substrate is called 'nonsense'"),
        (["run", "Local!", "--", "true"], "is not an address"),
        (["run", "local?colour=red", "--", "true"], "has no option 'colour'"),
        (["run", "pool:pool:local", "--", "true"], "says the same twice"),
        (["run", "https://host:8700/path", "--", "true"], "leads nowhere"),
        (["run", "local", "--colour", "red", "--", "true"], "--colour"),
        (["run", "local"], "no command to run"),
        (["run", "local", "--timeout", "soon", "--", "true"], "soon"),
        (["run", "local", "--timeout", "0", "--", "true"], "above 0"),
        (["run", "chroot", "--image", "./nowhere.tar", "--", "true"], "nowhere.tar"),
        (["check"], "nothing to check"),
        (["check", "local", "--case", "nonsense"], "no promise is called nonsense"),
        (["check", "chroot", "--image", "./nowhere.tar"], "nowhere.tar"),
        (["doctor", "nonsense"], "`excise doctor --help`"),
        (["image", "rm", "nonsense"], "'nonsense'"),
        (["image", "build", "nonsense"], "'nonsense'"),
        (["run", "command?file=/nowhere.toml", "--", "true"], "/nowhere.toml"),
        (["measure", "nonsense"], "nonsense"),
    ],
)
def test_a_wrong_request_is_one_sentence_and_exit_code_2(words: list[str], part: str) -> None:
    done = excise(*words)
    assert part in one_sentence(done)
    assert done.returncode == 2
    assert done.stdout == b""


def test_an_unreachable_daemon_is_one_sentence() -> None:
    done = excise("run", "docker", "--", "true", DOCKER_HOST="unix:///nowhere/docker.sock")
    assert "/nowhere/docker.sock" in one_sentence(done)
    assert done.returncode == 125


def test_an_unexpected_error_is_one_sentence_and_its_traceback_is_there_when_asked_for(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import excise.registry\nexcise.registry.make = lambda text: 1 / 0\n")
    done = excise("run", "local", "--", "true", PYTHONPATH=str(tmp_path))
    assert "unexpected ZeroDivisionError" in one_sentence(done)
    assert done.returncode == 1
    shown = excise("run", "local", "--", "true", PYTHONPATH=str(tmp_path), EXCISE_DEBUG="1")
    assert b"Traceback" in shown.stderr


def test_ctrl_c_while_it_loads_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "cyclopts.py").write_text("raise KeyboardInterrupt")
    done = excise("doctor", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (130, b"")


def test_a_reader_that_leaves_is_no_error() -> None:
    with subprocess.Popen([EXCISE, "check", "--list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        process.wait()


# ---- run


def test_run_passes_output_and_exit_code_on() -> None:
    done = excise("run", "local", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.stdout, done.stderr, done.returncode) == (b"out\n", b"err\n", 7)


def test_run_passes_bytes_on_unchanged() -> None:
    data = bytes(range(256)) * 4096
    done = excise("run", "local", "--", "cat", stdin=data)
    assert done.stdout == data


def test_run_shell_joins_the_words() -> None:
    done = excise("run", "local", "--shell", "--", "echo one && echo two | tr a-z A-Z")
    assert done.stdout == b"one\nTWO\n"


def test_run_says_when_it_timed_out() -> None:
    done = excise("run", "local", "--timeout", "0.3", "--", "sleep", "1000")
    assert "--timeout" in one_sentence(done)
    assert done.returncode == 124


def test_run_tells_a_death_by_signal() -> None:
    assert excise("run", "local", "--", "sh", "-c", "kill -9 $$").returncode == 137


def test_run_streams_before_the_command_ends() -> None:
    """The command waits for what we send after we saw its first line: it deadlocks if output or input is held back."""
    argv = [EXCISE, "run", "local", "--timeout", "60", "--", "sh", "-c", "echo first; read word; echo got $word"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"first\n"
        process.stdin.write(b"this\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"got this\n"
        # stdin is still open: a command that ended does not wait for it.
        assert process.wait() == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_ending_it_closes_the_sandbox(number: signal.Signals, code: int, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = f"echo $$ > {pid_file}.new; mv {pid_file}.new {pid_file}; echo started; exec sleep 1000"
    with subprocess.Popen(
        [EXCISE, "run", "local", "--", "sh", "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        process.send_signal(number)
        _, said = process.communicate()
    assert process.returncode == code
    assert said.startswith(b"excise: ended early")
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


def test_a_background_job_of_a_script_can_be_ended() -> None:
    """A shell without job control starts its background jobs with SIGINT ignored."""
    argv = [
        "sh",
        "-c",
        'trap "" INT; exec "$@"',
        "sh",
        EXCISE,
        "run",
        "local",
        "--",
        "sh",
        "-c",
        "echo started; exec sleep 1000",
    ]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        process.send_signal(signal.SIGTERM)
        try:
            _, said = process.communicate(timeout=20)
        finally:
            process.kill()
    assert (process.returncode, said) == (143, b"excise: ended early; its sandboxes were closed\n")


# ---- check


def test_check_of_the_fake_keeps_every_promise() -> None:
    done = excise("check", "fake")
    last = done.stdout.decode().splitlines()[-1]
    assert ", 0 broken, " in last
    assert done.returncode == 0


def test_check_says_what_is_broken() -> None:
    done = excise("check", "fake:broken=cwd", "--json")
    verdicts = json.loads(done.stdout)
    broken = {verdict["case"]: verdict["reason"] for verdict in verdicts if verdict["outcome"] == "broken"}
    assert "cwd" in broken
    assert broken["cwd"]
    assert done.returncode == 1


def test_check_one_group() -> None:
    done = excise("check", "fake", "--group", "state", "--json")
    assert {verdict["case"] for verdict in json.loads(done.stdout)} >= {"reset-restores-files", "diff-tells-changes"}
    assert "cwd" not in done.stdout.decode()
    wrong = excise("check", "fake", "--group", "nonsense")
    assert wrong.returncode == 2
    assert b"there are: " in wrong.stderr


def test_check_one_case() -> None:
    done = excise("check", "fake", "--case", "cwd")
    lines = done.stdout.decode().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("kept")
    assert lines[0].endswith(" cwd")
    assert lines[1] == "fake: 1 kept, 0 broken, 0 not declared, 0 not run"


def test_check_lists_the_cases_with_their_reasons() -> None:
    listed = excise("check", "--list").stdout.decode()
    assert listed.count("    why: ") > 30


# ---- care


def test_doctor_finds_by_trying() -> None:
    done = excise("doctor", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    substrates = {finding["name"]: finding for finding in found["substrates"]}
    assert {"fake", "local", "chroot", "bubblewrap", "runc", "docker"} <= substrates.keys()
    assert substrates["local"]["works"]
    assert "isolates nothing; the host's network" in substrates["local"]["detail"]
    for finding in (*found["substrates"], *found["machine"]):
        assert finding["detail"], finding


def test_doctor_says_how_to_enable_what_does_not_work(tmp_path: Path) -> None:
    done = excise("doctor", "--json", PATH=str(tmp_path), DOCKER_HOST=f"unix://{tmp_path}/none.sock")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    machine = {finding["name"]: finding for finding in found["machine"]}
    assert not machine["mmdebstrap"]["works"]
    assert "apt-get install mmdebstrap" in machine["mmdebstrap"]["remedy"]
    assert not machine["docker socket"]["works"]
    substrates = {finding["name"]: finding for finding in found["substrates"]}
    assert not substrates["docker"]["works"]
    assert not substrates["bubblewrap"]["works"]


def test_gc_says_what_it_removed() -> None:
    done = excise("gc", "local")
    assert (done.stdout, done.returncode) == (b"local: removed nothing\n", 0)


def test_gc_of_what_cannot_run_here_is_an_error_only_when_named() -> None:
    gone = "unix:///nowhere/docker.sock"
    everything = excise("gc", DOCKER_HOST=gone)
    assert everything.returncode == 0
    assert b"docker: not looked at: " in everything.stderr
    done = excise("gc", "docker", DOCKER_HOST=gone)
    assert done.returncode == 1
    one_sentence(done)
