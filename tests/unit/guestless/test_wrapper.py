"""The wrapping shell: what it says, that nobody else can say it, and how its marks come out of the output again."""

import asyncio
import itertools
import os
import secrets
import shutil
import signal
from typing import Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from excise.action import Exec, Observation
from excise.guestless.wrapper import MARKER, Counts, Ended, Stream, Wrapped, inline, wrap

from .conftest import Run


def ran(
    run: Run, wrapped: Wrapped, *, stdin: bytes = b"", env: dict[str, str] | None = None
) -> tuple[Observation, Ended | None]:
    """What the program itself wrote, and the shell's last word."""
    action = Exec(wrapped.argv, stdin=wrapped.preamble + stdin, env={**(env or {}), MARKER: wrapped.nonce})
    seen = asyncio.run(run(action))
    out, err = Stream(wrapped, "stdout"), Stream(wrapped, "stderr")
    stdout, stderr = out.feed(seen.stdout) + out.rest(), err.feed(seen.stderr) + err.rest()
    assert wrapped.inline or out.began is not None
    return Observation(exit_code=seen.exit_code, stdout=stdout, stderr=stderr), out.ended


def wrapping(
    *argv: str, stdin: Literal["open", "closed"] | int = "closed", cwd: str | None = None, apart: bool = True
) -> Wrapped:
    return wrap(argv, cwd=cwd, stdin=stdin, apart=apart, limited=False)


def script(text: str, *, stdin: Literal["open", "closed"] | int = "closed") -> Wrapped:
    return wrapping("sh", "-c", text, stdin=stdin)


def test_output_and_code_come_through(run: Run) -> None:
    seen, ended = ran(run, script("echo out; echo err >&2; exit 7"))
    assert (seen.stdout, seen.stderr, seen.exit_code) == (b"out\n", b"err\n", 7)
    assert ended == Ended(7, still_running=False, counts=Counts())


def test_one_stream_keeps_the_order(run: Run) -> None:
    wrapped = wrapping("sh", "-c", "echo 1; echo 2 >&2; echo 3", apart=False)
    assert ran(run, wrapped)[0].stdout == b"1\n2\n3\n"


@pytest.mark.parametrize("stdin", ["open", 4])
def test_stdin_is_what_follows_the_key(run: Run, stdin: Literal["open"] | int) -> None:
    seen, ended = ran(run, script("cat; exit 3", stdin=stdin), stdin=b"a\0\nb")
    assert seen.stdout == b"a\0\nb"
    assert ended is not None
    assert ended.exit_code == 3


def test_closed_stdin_ends_at_once(run: Run) -> None:
    assert ran(run, script("cat"), stdin=b"not for it")[0].stdout == b""


@pytest.mark.parametrize(("argv", "code"), [(("exit", "3"), 127), (("cd", "/"), 127), (("/nonesuch",), 127), (("/",), 126)])
def test_a_program_is_a_program_and_never_a_builtin(run: Run, argv: tuple[str, ...], code: int) -> None:
    _, ended = ran(run, wrapping(*argv))
    assert ended is not None
    assert ended.exit_code == code


def test_a_death_by_signal_leaves_no_remark(run: Run) -> None:
    seen, ended = ran(run, script("kill -9 $$"))
    assert (seen.stdout, seen.stderr) == (b"", b"")
    assert ended is not None
    assert ended.exit_code == 137


def test_signals_to_the_group_spare_the_shell(run: Run) -> None:
    _, ended = ran(run, script("trap 'exit 9' TERM; kill -TERM $PPID $$; sleep 5"))
    assert ended is not None
    assert ended.exit_code == 9


def test_a_directory_that_is_not_there(run: Run) -> None:
    seen, ended = ran(run, wrapping("sh", "-c", "echo ran", cwd="no/such"))
    assert (seen.stdout, seen.stderr) == (b"", b"cannot enter the directory ./no/such\n")
    assert ended is not None
    assert ended.exit_code == 126


def test_the_callers_variables_are_left_alone(run: Run) -> None:
    wrapped = script('echo "$s $word"')
    assert ran(run, wrapped, env={"s": "one", "word": "two"})[0].stdout == b"one two\n"
    wrapped = script("set")
    seen, _ = ran(run, wrapped, env={"EXCISE_KEY": "mine", "EXCISE_WORD": "mine"})
    assert wrapped.key.encode() not in seen.stdout


def test_what_is_left_running_is_told(run: Run) -> None:
    seen, ended = ran(run, script("sleep 500 >/dev/null 2>&1 & echo $!"))
    os.kill(int(seen.stdout), signal.SIGKILL)
    assert ended is not None
    assert ended.still_running


def test_what_is_left_running_is_told_where_the_numbers_of_processes_begin_again(run: Run) -> None:
    """In a process namespace whose next number can be chosen: what is left has a lower one than the shell."""
    unshare = shutil.which("unshare")
    assert unshare is not None
    next_is = "echo {} >/proc/sys/kernel/ns_last_pid"
    high = ("sh", "-c", f'{next_is.format(3000)}; "$0" "$@"; exit $?')

    async def in_a_namespace(action: Exec) -> Observation:
        argv = (unshare, "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc", *high, *action.argv)
        return await run(msgspec.structs.replace(action, argv=argv))

    _, ended = ran(in_a_namespace, script(f"{next_is.format(300)}; sleep 500 >/dev/null 2>&1 & exit 0"))
    assert ended is not None
    assert ended.still_running
    _, ended = ran(in_a_namespace, script("exit 0"))
    assert ended is not None
    assert not ended.still_running


def test_a_script_of_ours_is_no_process_of_its_own(run: Run) -> None:
    seen, ended = ran(run, inline('echo "$1" $$; [ "$2" = x ] || return 4', "one", "y"))
    assert seen.stdout.startswith(b"one ")
    assert ended is not None
    assert ended.exit_code == 4


def test_the_key_is_in_no_place_the_program_can_look(run: Run) -> None:
    wrapped = script("cat /proc/$PPID/cmdline /proc/$PPID/environ /proc/self/environ")
    assert wrapped.key.encode() not in ran(run, wrapped)[0].stdout


def test_a_forged_end_is_output() -> None:
    wrapped = script("true")
    stream = Stream(wrapped, "stdout")
    forged = f"\x1e{wrapped.nonce} 0 0|\x1e".encode()
    assert stream.feed(begin(wrapped) + forged) + stream.rest() == forged
    assert stream.ended is None


def begin(wrapped: Wrapped) -> bytes:
    status = "12 (a) b) S 1 " + " ".join(str(number) for number in range(5, 30))
    return f"\x1e{wrapped.nonce} {status}|\x1e".encode()


@given(st.binary(max_size=300), st.lists(st.integers(0, 600)), st.booleans())
def test_marks_come_out_wherever_the_pieces_are_cut(data: bytes, cuts: list[int], near_mark: bool) -> None:
    wrapped = script("true")
    if near_mark:  # what begins like a mark, and is none
        data += b"\x1e" + wrapped.key.encode()[: len(data) % 32]
    whole = b"engine's words" + begin(wrapped) + data + f"\x1e{wrapped.key} 5 1| oom_kill=2 max=3\x1e".encode() + b"later"
    stream, got = Stream(wrapped, "stdout"), b""
    at = [0, *sorted(cut for cut in cuts if cut < len(whole)), len(whole)]
    for start, end in itertools.pairwise(at):
        got += stream.feed(whole[start:end])
    assert got == data
    assert stream.prologue == b"engine's words"
    assert stream.began is not None
    assert (stream.began.pid, stream.began.start_ticks) == (12, 22)
    assert stream.ended == Ended(5, still_running=True, counts=Counts(2, 3))


def test_without_an_end_nothing_is_lost() -> None:
    wrapped = script("true")
    stream = Stream(wrapped, "stdout")
    half = b"\x1e" + wrapped.key.encode()[:9]
    assert stream.feed(begin(wrapped) + b"data" + half) == b"data"
    assert stream.rest() == half


def test_no_memory_is_held_for_a_mark_that_never_closes() -> None:
    wrapped = script("true")
    stream = Stream(wrapped, "stdout")
    endless = b"\x1e" + wrapped.key.encode() + secrets.token_hex(8000).encode()
    assert stream.feed(begin(wrapped) + endless) == endless
