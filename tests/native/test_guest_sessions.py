"""Sessions: whatever the processes of one do, its status is the shell's own, and the next command finds a shell."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from excise.action import End, Observation
from excise.sandbox import Sandbox
from excise.spec import Spec

Story = Callable[[Sandbox], Awaitable[None]]


@pytest.fixture
def tell(runs_here: Callable[[str], None]) -> Callable[[Story], None]:
    """`tell(story)`: run it in a namespace sandbox of its own."""
    runs_here("namespace")

    async def told(story: Story) -> None:
        async with asyncio.timeout(60), Sandbox("namespace", Spec(image="host")) as box:
            await story(box)

    return lambda story: asyncio.run(told(story))


async def says(box: Sandbox, script: str, timeout_s: float | None = None) -> Observation:
    return await box.run(script, session="main", timeout_s=timeout_s)


async def works(box: Sandbox) -> None:
    seen = await says(box, "echo works")
    assert (seen.end, seen.exit_code, seen.stdout) == (End.EXITED, 0, b"works\n")


# ---- the shell is opaque

REACH = r"""
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def tries(pid):
    yield "ptrace", lambda: libc.ptrace(0x4206, pid, 0, 0)
    yield "mem", lambda: os.open(f"/proc/{pid}/mem", os.O_RDWR)
    yield "environ", lambda: os.open(f"/proc/{pid}/environ", os.O_RDONLY)
    yield "exe", lambda: os.open(f"/proc/{pid}/exe", os.O_RDONLY)
    for number in (*range(20), 255):
        yield f"fd {number}", lambda: os.open(f"/proc/{pid}/fd/{number}", os.O_WRONLY | os.O_NONBLOCK)
    handle = os.pidfd_open(pid)
    for number in (*range(20), 255):
        yield f"pidfd_getfd {number}", lambda: libc.syscall(438, handle, number, 0)
    vector = (ctypes.c_void_p * 2)(ctypes.addressof(ctypes.create_string_buffer(1)), 1)
    yield "process_vm_readv", lambda: libc.process_vm_readv(pid, vector, 1, vector, 1, 0)
for name, attempt in tries(int(sys.argv[1])):
    try:
        if attempt() >= 0:
            print("reached by", name)
    except OSError:
        pass
sys.exit(9)
"""


@pytest.mark.parametrize("target", ["$$", "$BASHPID"], ids=["shell", "subshell"])
def test_no_process_reaches_into_the_shell(target: str, tell: Callable[[Story], None]) -> None:
    async def story(box: Sandbox) -> None:
        await box.write("/tmp/reach.py", REACH.encode())
        seen = await says(box, f"(python3 /tmp/reach.py {target}; exit $?)")
        assert (seen.text, seen.exit_code) == ("\n[exit code 9]", 9)
        own = await says(box, "sleep 60 & python3 /tmp/reach.py $!; kill $!")
        assert "reached by ptrace" in own.text  # else the attempts prove nothing

    tell(story)


LIE_IN_WAIT = r"""
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
last = int(open("/proc/loadavg").read().split()[-1])
open("/tmp/waiting", "w").close()
while not os.path.exists("/tmp/enough"):
    for pid in range(last, last + 12):
        if libc.ptrace(0x4206, pid, 0, 0) == 0:
            print("seized", open(f"/proc/{pid}/cmdline").read().replace("\0", " "), flush=True)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass  # what we hold and has ended, its parent waits for
    except ChildProcessError:
        pass
    last = max(last, int(open("/proc/loadavg").read().split()[-1]))
"""


def test_the_shell_is_opaque_from_its_first_instruction_on(tell: Callable[[Story], None]) -> None:
    async def story(box: Sandbox) -> None:
        await box.write("/tmp/wait.py", LIE_IN_WAIT.encode())
        waiting = asyncio.create_task(box.run("python3 /tmp/wait.py", timeout_s=30))
        await box.run("while test ! -e /tmp/waiting; do sleep 0.02; done", timeout_s=20)
        for number in range(20):
            assert (await box.run("true", session=f"s{number}", timeout_s=10)).ok
        await box.write("/tmp/enough", b"")
        assert "bash" not in (await waiting).text

    tell(story)


# ---- nobody else speaks for it

FLOOD = "for fd in {3..30}; do printf '\\0%016x 0\\0' 0 >&$fd; echo 0 >&$fd; done 2>/dev/null; exit 9"
ANSWER = r"""
( while test ! -e /tmp/go; do :; done; kill -STOP $$; touch /tmp/stopped
  while IFS= read -r -u 10 line; do
    for word in $line; do printf '\0%s 0\0' "${word%;}" >&10; done
  done ) >/dev/null 2>&1 &
"""


async def stop_shell(box: Sandbox) -> None:
    """Let the subshell that was left behind stop its shell, so that it alone reads what comes."""
    await box.write("/tmp/go", b"")
    await box.run("while test ! -e /tmp/stopped; do sleep 0.02; done", timeout_s=20)


def test_a_subshell_that_writes_everywhere(tell: Callable[[Story], None]) -> None:
    async def story(box: Sandbox) -> None:
        assert (await says(box, f"({FLOOD})")).exit_code == 9
        assert (await says(box, f"({FLOOD}) & wait $!")).exit_code == 9
        assert (await says(box, "false")).exit_code == 1
        await works(box)

    tell(story)


def test_a_subshell_that_reads_the_commands_and_answers_them(tell: Callable[[Story], None]) -> None:
    """It knows each nonce and holds the very descriptor; the kernel says who wrote."""

    async def story(box: Sandbox) -> None:
        assert (await says(box, ANSWER)).ok
        await stop_shell(box)
        seen = await says(box, "false", timeout_s=1)
        assert (seen.end, seen.session_replaced) == (End.TIMED_OUT, True)
        await works(box)

    tell(story)


@pytest.mark.parametrize("stolen", ["-r", "-r -N 1", "-r -N 2", "-r -N 11", "-r -N 60"])
def test_a_command_that_is_stolen_in_part_does_not_succeed(stolen: str, tell: Callable[[Story], None]) -> None:
    """The shell is stopped while a copy of it reads what is there; then it goes on with the rest."""

    async def story(box: Sandbox) -> None:
        thief = f"(kill -STOP $$; touch /tmp/stopped; IFS= read {stolen} -u 10 line; kill -CONT $$)"
        assert (await says(box, f"(while test ! -e /tmp/go; do :; done; {thief}) & true")).ok
        await stop_shell(box)
        seen = await says(box, "touch /tmp/ran; echo 0123456789012345678901234567890123456789", timeout_s=2)
        assert seen.exit_code in (130, None)  # None: what is left is half a command, and waited for its end
        assert not (await box.run("test -e /tmp/ran")).ok
        await works(box)

    tell(story)


@pytest.mark.parametrize(("name", "signal"), [("KILL", 9), ("HUP", 1), ("SEGV", 11)])
def test_a_shell_that_is_killed(name: str, signal: int, tell: Callable[[Story], None]) -> None:
    async def story(box: Sandbox) -> None:
        seen = await says(box, f"sh -c 'kill -{name} $PPID; sleep 60'")
        assert (seen.end, seen.signal, seen.session_replaced) == (End.SIGNALED, signal, True)
        await works(box)
        assert not (await says(box, "true")).session_replaced

    tell(story)


def test_everything_is_killed(tell: Callable[[Story], None]) -> None:
    async def story(box: Sandbox) -> None:
        seen = await says(box, "python3 -c 'import os; os.kill(-1, 9)'; sleep 60", timeout_s=20)
        assert not seen.ok
        assert seen.end is not End.TIMED_OUT
        assert seen.session_replaced
        await works(box)

    tell(story)


def test_a_shell_that_is_stopped_is_replaced(tell: Callable[[Story], None]) -> None:
    async def story(box: Sandbox) -> None:
        seen = await says(box, "sh -c 'kill -STOP $PPID; sleep 60'", timeout_s=0.5)
        assert (seen.end, seen.session_replaced) == (End.TIMED_OUT, True)
        await works(box)

    tell(story)


def test_a_shell_that_dies_between_commands_is_told_once(tell: Callable[[Story], None]) -> None:
    async def story(box: Sandbox) -> None:
        seen = await says(box, "(sleep 0.2; kill -9 $$) & true")
        assert (seen.exit_code, seen.still_running, seen.session_replaced) == (0, True, False)
        await box.run("sleep 0.6")
        assert (await says(box, "true")).session_replaced
        assert not (await says(box, "true")).session_replaced

    tell(story)


# ---- commands


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ("false", "echo $?", "1\n"),
        ("(exit 7)", "echo $?", "7\n"),
        ("trap 'echo traced' DEBUG", "trap - DEBUG; echo end", "end\n"),
        ("alias builtin=false eval=false printf=false", "echo $?", "0\n"),
        ("printf() { false; }; eval() { false; }; set() { false; }; return() { false; }", "echo $?", "0\n"),
        ("IFS=0123456789; set -f", "(exit 12)", "\n[exit code 12]"),
        ("exec 5>&1 >/dev/null", "exec >&5; echo back", "back\n"),
        ("set -u", "echo $nowhere; echo not here", "bash: nowhere: unbound variable\n\n[exit code 1]"),
        ("-x", "echo still", "still\n"),
        ("exec </dev/null", "read line; echo $?", "1\n"),
        ("cat <<EOF\nleft open", "echo on", "on\n"),
    ],
)
def test_what_a_command_does_to_the_shell(first: str, second: str, text: str, tell: Callable[[Story], None]) -> None:
    async def story(box: Sandbox) -> None:
        await says(box, first, timeout_s=10)
        seen = await says(box, second, timeout_s=10)
        assert (seen.text.replace("traced\n", ""), seen.session_replaced) == (text, False)

    tell(story)


def test_a_shell_with_errexit_ends_with_the_status(tell: Callable[[Story], None]) -> None:
    async def story(box: Sandbox) -> None:
        seen = await says(box, "set -e; (exit 6); echo no")
        assert (seen.exit_code, seen.session_replaced, seen.stdout) == (6, True, b"")
        await works(box)

    tell(story)


@pytest.mark.parametrize("lines", [1, 1000, 200_000])
def test_long_commands_arrive_whole(lines: int, tell: Callable[[Story], None]) -> None:
    async def story(box: Sandbox) -> None:
        text = "".join(f"line {number} of 'all' $HOME \\ \"\n" for number in range(lines))
        seen = await says(box, f"cat > /tmp/text <<'EOF'\n{text}EOF\n", timeout_s=40)
        assert seen.ok
        assert (await box.read("/tmp/text")).decode() == text

    tell(story)


def test_what_is_printed_between_commands_is_nobodys(tell: Callable[[Story], None]) -> None:
    async def story(box: Sandbox) -> None:
        seen = await says(box, "(sleep 0.2; echo late; head -c 1000000 /dev/zero; touch /tmp/printed) & echo now")
        assert seen.stdout == b"now\n"
        await box.run("while test ! -e /tmp/printed; do sleep 0.02; done", timeout_s=20)
        assert (await says(box, "echo mine")).stdout == b"mine\n"

    tell(story)


def test_one_that_prints_without_end_holds_nobody_up(tell: Callable[[Story], None]) -> None:
    async def story(box: Sandbox) -> None:
        assert (await says(box, "yes & true", timeout_s=10)).still_running
        for _ in range(5):
            seen = await says(box, "true", timeout_s=10)
            assert (seen.exit_code, seen.still_running) == (0, False)
        seen = await says(box, "sleep 60", timeout_s=0.3)
        assert (seen.end, seen.session_replaced) == (End.TIMED_OUT, False)
        assert (await says(box, "kill %1; wait; true", timeout_s=10)).exit_code == 0

    tell(story)


def test_a_command_whose_output_nobody_reads_can_be_killed(tell: Callable[[Story], None]) -> None:
    async def story(box: Sandbox) -> None:
        await says(box, "kept=yes")
        process = await box.start("while :; do echo 0123456789; done", session="main")
        await asyncio.sleep(0.3)
        await process.kill()
        assert (await says(box, "echo $kept", timeout_s=10)).text == "yes\n"

    tell(story)


def test_commands_that_are_cancelled_before_their_turn_never_run(tell: Callable[[Story], None]) -> None:
    async def story(box: Sandbox) -> None:
        first = asyncio.create_task(says(box, "touch /tmp/begun; while test ! -e /tmp/go; do sleep 0.02; done; echo first"))
        await box.run("while test ! -e /tmp/begun; do sleep 0.02; done", timeout_s=20)
        second = asyncio.create_task(says(box, "touch /tmp/second"))
        third = asyncio.create_task(says(box, "echo third"))
        await box.run("true")
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        await box.write("/tmp/go", b"")
        assert ((await first).text, (await third).text) == ("first\n", "third\n")
        assert not (await box.run("test -e /tmp/second")).ok

    tell(story)


def test_a_timeout_counts_from_the_turn(tell: Callable[[Story], None]) -> None:
    async def story(box: Sandbox) -> None:
        first = asyncio.create_task(says(box, "sleep 1; echo first"))
        second = asyncio.create_task(says(box, "echo second", timeout_s=0.5))
        assert ((await first).text, (await second).text) == ("first\n", "second\n")

    tell(story)


def test_a_shell_that_cannot_be_started_says_why(runs_here: Callable[[str], None]) -> None:
    runs_here("namespace")

    async def story() -> None:
        async with Sandbox("namespace", Spec(image="host", workdir="/tmp/gone")) as box:
            await box.run(["rmdir", "/tmp/gone"], cwd="/")
            seen = await says(box, "true")
            assert (seen.exit_code, seen.session_replaced) == (127, False)
            assert "/tmp/gone: No such file or directory" in seen.text
            await box.make_dir("/tmp/gone")
            await works(box)

    asyncio.run(story())
