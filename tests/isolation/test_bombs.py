"""Code that takes all it can get: it meets its sandbox's limits, is told so, and nobody else feels it."""

import os
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from excise.action import End, Exec, Keep, Output
from excise.sync import Sandbox

MIB = 1 << 20

Limited = Callable[..., Sandbox]


def alive(box: Sandbox) -> bool:
    return box.run(["echo", "there"]).text == "there\n"


def test_a_fork_bomb(limited: Limited) -> None:
    with limited(pids=64) as box:
        box.write("/tmp/bomb.py", "import os, time\nwhile True:\n    try: os.fork()\n    except OSError: time.sleep(0.01)\n")
        seen = box.run(["python3", "/tmp/bomb.py"], timeout_s=3)
        assert seen.end in (End.TIMED_OUT, End.OUT_OF_PIDS)
        assert alive(box)  # all of it is dead, so there is room again
        assert box.run("grep -lx python3 /proc/[0-9]*/comm | wc -l").text == "0\n"


def test_a_busy_loop(limited: Limited) -> None:
    """By the kernel's own account: a tenth of a processor was allowed, so it had not half of one, however busy the host is."""
    with limited(cpus=0.1) as box:
        seen = box.run(["python3", "-c", "import time\nend = time.monotonic() + 2\nwhile time.monotonic() < end: pass"])
    assert seen.ok
    assert seen.cpu_ns is not None
    assert seen.guest_ns is not None
    assert seen.cpu_ns < 0.5 * seen.guest_ns


def test_a_shell_that_cannot_fork_is_out_of_pids(limited: Limited) -> None:
    with limited(pids=32) as box:
        seen = box.run("for i in $(seq 60); do sleep 60 & done; wait", timeout_s=20)
        assert seen.end is End.OUT_OF_PIDS
        # What it left lives on, as it should; while it does, the next one is told the same and not that the sandbox is lost.
        assert seen.still_running
        assert box.run(["echo", "there"]).end is End.OUT_OF_PIDS


def test_a_memory_bomb(limited: Limited) -> None:
    with limited(memory_bytes=64 * MIB) as box:
        seen = box.run(["python3", "-c", "x = bytearray(512 << 20)"])
        assert seen.end is End.OUT_OF_MEMORY
        assert alive(box)


def test_memory_in_many_small_processes(limited: Limited, tmp_path: Path) -> None:
    """Each smaller than the guest: were it among those the kernel may choose from, it would be the one to go."""
    source = tmp_path / "small.c"
    source.write_text(
        "#include <unistd.h>\nint main(void) { for (int i = 0; i < 4000; i++) if (fork() == 0) pause(); pause(); }"
    )
    subprocess.run(["gcc", "-static", "-o", tmp_path / "small", source], check=True, timeout=60)
    with limited(memory_bytes=32 * MIB) as box:
        box.write("/tmp/small", (tmp_path / "small").read_bytes(), mode=0o755)
        assert box.run(["/tmp/small"], timeout_s=10).end in (End.OUT_OF_MEMORY, End.TIMED_OUT)
        # What it left may still fill it; then that is what the next one is told, and not that the sandbox is lost.
        assert box.run(["echo", "there"]).end in (End.EXITED, End.OUT_OF_MEMORY)


def test_memory_hidden_in_files(limited: Limited) -> None:
    """A file in memory is no process's: no kill gives it back. The sandbox is told so, and lives; others do not notice."""
    with limited(memory_bytes=64 * MIB) as box, limited(memory_bytes=64 * MIB) as other:
        assert box.run("head -c 200M /dev/zero > /dev/shm/full", timeout_s=30).end is End.OUT_OF_MEMORY
        for _ in range(3):
            seen = box.run(["python3", "-c", "x = bytearray(32 << 20)"])
            assert seen.end is End.OUT_OF_MEMORY
        box.remove("/dev/shm/full")
        assert alive(box)
        assert alive(other)


def test_a_program_that_full_memory_kept_from_starting_is_out_of_memory(limited: Limited) -> None:
    """Whether exec fails, or the kernel kills before the guest has looked; never a failed command. Many, for the odds."""

    def ends(_: int) -> set[End]:
        with limited(memory_bytes=64 * MIB) as box:
            box.run("head -c 200M /dev/zero > /dev/shm/full", timeout_s=30)
            return {box.run(["python3", "-c", "x = bytearray(32 << 20)"]).end for _ in range(10)}

    with ThreadPoolExecutor(6) as threads:
        assert set().union(*threads.map(ends, range(18))) == {End.OUT_OF_MEMORY}


def test_a_disk_bomb(limited: Limited) -> None:
    with limited(disk_bytes=16 * MIB) as box:
        for place in ("/tmp", "/var/tmp", "/dev/shm", "/root", "/etc"):
            seen = box.run(f"mkdir -p {place}; head -c 64M /dev/zero > {place}/bomb", timeout_s=30)
            assert not seen.ok, place
            total = int(box.run(f"stat -c %s {place}/bomb; rm -f {place}/bomb").text)
            assert total <= 16 * MIB, place
        assert box.run("head -c 64M /dev/zero > /tmp/bomb").end is End.OUT_OF_DISK
        assert box.run("rm /tmp/bomb && echo there").text == "there\n"


def test_an_inode_bomb(limited: Limited) -> None:
    with limited(inodes=2000) as box:
        script = "import os\nos.mkdir('/tmp/many')\nfor n in range(10000): os.close(os.open(f'/tmp/many/{n}', os.O_CREAT))\n"
        seen = box.run(["python3", "-c", script])
        assert not seen.ok
        assert b"No space left" in seen.stderr
        assert len(box.run("ls /tmp/many").text.split()) < 2000
        assert box.run("rm -r /tmp/many && touch /tmp/one && echo there").text == "there\n"


EXHAUST = """
import os, ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
held = []
def take():
    match sys.argv[1]:
        case "pty": held.append(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
        case "inotify":
            held.append(libc.inotify_init1(0))
            if held[-1] < 0: raise OSError
        case "descriptors": held.append(os.open("/dev/null", os.O_RDONLY))
        case "sockets": held.append(os.pipe())
try:
    while len(held) < int(sys.argv[2]): take()
except OSError: pass
print(len(held), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(("what", "most"), [("pty", 4000), ("inotify", 4000), ("descriptors", 20000), ("sockets", 5000)])
def test_kernel_objects_taken_by_one_are_left_for_others(what: str, most: int, limited: Limited) -> None:
    """One sandbox takes as many as it gets and holds them; another, and the host, still get theirs."""
    if what == "inotify" and os.geteuid() != 0:
        pytest.skip("the kernel counts them for the user who started all of these sandboxes")
    with limited() as greedy, limited() as other:
        for box in (greedy, other):
            box.write("/tmp/exhaust.py", EXHAUST)
        process = greedy.start(["python3", "/tmp/exhaust.py", what, str(most)])
        first = next(process)
        assert isinstance(first, Output)
        assert int(first.data) > 0
        few = other.run(["python3", "/tmp/exhaust.py", what, "8"])
        assert few.text == "8\n"
        for end in os.openpty():
            os.close(end)
        process.signal(9)
        assert process.wait().signal == 9


def test_an_output_bomb(limited: Limited) -> None:
    """Endless output is cut to what was asked to be kept, on both sides."""
    with limited() as box:
        began = time.monotonic()
        seen = box.run(Exec(("yes", "x" * 100), timeout_s=2, keep=Keep(head_bytes=1000, tail_bytes=1000)))
        assert seen.end is End.TIMED_OUT
        assert len(seen.stdout) <= 2100
        assert seen.dropped_bytes > MIB
        assert time.monotonic() - began < 30
        assert alive(box)


def test_output_nobody_reads_stalls_its_own_producer_only(limited: Limited) -> None:
    with limited() as box:
        process = box.start(["yes"])
        next(process)
        assert alive(box)
        process.signal(9)
        assert process.wait().signal == 9
