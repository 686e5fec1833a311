"""What an exec cannot be told in its URL comes on its stdin: run here by a real shell, on a pipe and on a terminal."""

import os
import pty
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from excise.guestless.inside import Start
from excise.substrates.kubernetes.wire import Boot

SHOW = ("env", "-0")
TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=60)


def on_a_pipe(start: Start, rest: bytes = b"") -> bytes:
    boot = Boot(start)
    done = subprocess.run(boot.argv, input=boot.preamble + rest, capture_output=True, check=True, timeout=30)
    assert done.stderr == b""
    return done.stdout.rpartition(boot.word)[2] if boot.word else done.stdout


def on_a_terminal(start: Start) -> bytes:
    boot = Boot(start)
    pid, master = pty.fork()
    if pid == 0:
        os.execvp(boot.argv[0], boot.argv)  # noqa: S606 - the shell is what is tried
    os.write(master, boot.preamble)
    said = b""
    try:
        while piece := os.read(master, 65536):
            said += piece
    except OSError:
        pass  # how a terminal says that it ended
    os.waitpid(pid, 0)
    os.close(master)
    assert boot.word in said
    return said.rpartition(boot.word)[2]


def variables(shown: bytes) -> dict[str, str]:
    lines = (line.decode("utf-8", "surrogateescape").partition("=") for line in shown.split(b"\0") if line)
    return {name: value for name, _, value in lines}


@settings(max_examples=15, deadline=None)
@given(TEXT, TEXT)
def test_variables_and_arguments_arrive_as_they_are(value: str, word: str) -> None:
    env = {"VALUE": value, "A-B": value, "UID": "5"}
    assert on_a_pipe(Start(argv=("printf", "%s", word), env=env)) == word.encode()
    seen = variables(on_a_pipe(Start(argv=SHOW, env=env)))
    assert (seen["VALUE"], seen["A-B"], seen["UID"]) == (value, value, "5")
    assert not [name for name in seen if name.startswith("EXCISE_") and name not in os.environ]


@pytest.mark.parametrize("value", ["plain", "it's", "\x03\x04\x1a\x7f", "a\nb\n\n", "ü" * 400, "x" * 9000, "'\\'"])
def test_a_terminal_takes_them_for_no_keys(value: str) -> None:
    start = Start(argv=SHOW, env={"VALUE": value}, terminal=True)
    assert variables(on_a_terminal(start).replace(b"\r\n", b"\n"))["VALUE"] == value


def test_a_variable_that_bash_does_not_let_be_set_is_set() -> None:
    boot = Boot(Start(argv=SHOW, env={"UID": "5", "PPID": "6"}))
    command = ("bash", "--posix", *boot.argv[1:])  # as its `sh` is
    done = subprocess.run(command, input=boot.preamble, capture_output=True, check=True, timeout=30)
    seen = variables(done.stdout.rpartition(boot.word)[2])
    assert (seen["UID"], seen["PPID"]) == ("5", "6")


def test_what_comes_after_them_is_the_programs() -> None:
    assert on_a_pipe(Start(argv=("cat",), env={"X": "1"}), b"rest\n\0of it") == b"rest\n\0of it"


def test_a_long_argument_is_in_no_url() -> None:
    word = "x" * 100_000
    boot = Boot(Start(argv=("printf", "%s", word), env={}))
    assert sum(map(len, boot.argv)) < 1000
    assert on_a_pipe(Start(argv=("printf", "%s", word), env={})) == word.encode()


def test_bytes_that_are_no_text_are_arguments_too() -> None:
    assert on_a_pipe(Start(argv=("printf", "%s", "\udcff\udc80"), env={})) == b"\xff\x80"


def test_no_variable_but_the_mark_is_in_the_url() -> None:
    boot = Boot(Start(argv=("true",), env={"EXCISE_ACTION": "mark", "KEY": "hush"}))
    assert "hush" not in " ".join(boot.argv)
    assert Boot(Start(argv=("true",), env={"EXCISE_ACTION": "mark"})).preamble == b""
