"""Control groups of version 2: who of a sandbox is in which. That can be seen in a tree without controllers, too."""

import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from launched import CGROUP, MAKE_DIR, Who, children, home, text

from excise.substrates.namespace.cgroups import trees


@pytest.fixture
def place(launch_program: int) -> Generator[Path]:
    """A directory of a v2 tree that nobody has made yet, for a launcher to make its home."""
    unified = [tree.top for tree in trees() if tree.version == 2 and os.access(tree.top, os.W_OK)]
    if not unified:
        pytest.skip("no v2 tree is ours to write here")
    place = unified[0] / f"launch-test-{os.getpid()}"
    yield place
    for group in (place / "guests", place):
        if group.is_dir():
            group.rmdir()


def group_of(pid: int | str) -> str:
    """Where a process of the host's is, in its v2 tree."""
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return next(line for line in lines if line.startswith("0::")).removeprefix("0::/")


def test_programs_and_workers_are_in_the_sandboxs_group_and_the_guest_and_its_runners_are_not(root: Who, place: Path) -> None:
    guests = f"{place.name}/guests"
    with root.launch() as launch:
        box = launch.create(root.plain + home(place) + text(CGROUP, place / "one"))
        other = launch.create(root.plain + home(place) + text(CGROUP, place / "two"))
        assert box.sh("grep ^0: /proc/self/cgroup") == "0::/one"
        assert box.sh("sh -c 'exec grep ^0: /proc/self/cgroup' & wait") == "0::/one"
        assert "\n0::/one\n" in "\n" + box.read("/proc/self/cgroup")
        assert other.sh("grep ^0: /proc/self/cgroup") == "0::/two"
        runners = Path(f"/proc/{box.pid}/task/{box.pid}/children").read_text().split()
        assert runners
        assert {group_of(pid) for pid in [launch.process.pid, box.pid, other.pid, *runners]} == {guests}
        assert (place / "one/cgroup.procs").read_text() == ""  # what ran in it has ended
        launch.close(box)
        assert not (place / "one").exists()
        assert other.sh("echo on") == "on"
    assert sorted(path.name for path in place.iterdir() if path.is_dir()) == ["guests"]


def test_a_guest_may_start_processes_in_its_own_group_alone(root: Who, place: Path) -> None:
    with root.launch() as launch:
        box = launch.create(root.plain + home(place) + text(CGROUP, place / "one"))
        other = launch.create(root.plain + home(place) + text(CGROUP, place / "two"))
        owners = {name: (place / name / "cgroup.procs").stat().st_uid for name in ("one", "two", "guests")}
        first, second = (int(Path(f"/proc/{pid}/uid_map").read_text().split()[1]) for pid in (box.pid, other.pid))
        assert owners == {"one": first, "two": second, "guests": 0}
        assert {(place / "one" / name).stat().st_uid for name in ("cgroup.max.depth", "cgroup.subtree_control")} == {0}
        assert Path(place / "one").stat().st_uid == 0


def test_what_has_no_group_of_its_own_is_as_before(root: Who, place: Path) -> None:
    with root.launch() as launch:
        before = launch.create(root.plain)
        box = launch.create(root.plain + home(place) + text(CGROUP, place / "one"))
        after = launch.create(root.plain)
        assert before.sh("grep ^0: /proc/self/cgroup") == "0::/"
        assert after.sh("grep ^0: /proc/self/cgroup") == "0::/"
        assert box.sh("echo on") == "on"


def test_groups_go_with_a_guest_that_is_killed_and_with_what_was_not_made(root: Who, place: Path) -> None:
    with root.launch() as launch:
        box = launch.create(root.plain + home(place) + text(CGROUP, place / "one"))
        signal.pidfd_send_signal(box.pidfd, signal.SIGKILL)
        launch.receive()
        launch.refuse(root.plain + home(place) + text(CGROUP, place / "one") + text(MAKE_DIR, "/etc/passwd/below"))
        assert children(launch) == []
        assert not (place / "one").exists()


def test_a_home_that_cannot_be_made_is_told(root: Who, place: Path) -> None:
    asked = root.plain + text(CGROUP, place / "one")
    with root.launch() as launch:
        assert str(place / "no/such") in launch.refuse(asked + home(place / "no/such")).step
        assert str(place) in launch.refuse(asked + home(place, "+nonsense")).step
        assert launch.create(asked + home(place)).sh("echo on") == "on"  # it is made once it can be


CLONE3 = r"""
import ctypes, errno, os, random, struct
libc = ctypes.CDLL(None, use_errno=True)
arguments = struct.pack("<11Q", 0x10000000, *(0,) * 3, 17, *(0,) * 6)  # CLONE_NEWUSER
answers = set()
for _ in range(1000):
    key = [random.getrandbits(32) for _ in range(4)]
    if libc.syscall(435, arguments, len(arguments), *map(ctypes.c_ulong, key)) == 0:
        os._exit(0)
    answers.add(errno.errorcode[ctypes.get_errno()])
print(*answers)
"""


def test_clone3_is_for_runners_alone(root: Who, place: Path) -> None:
    """They say a key that nobody else knows."""
    with root.launch() as launch:
        box = launch.create(root.plain + home(place) + text(CGROUP, place / "one"))
        code, said = box.run("/usr/bin/python3", "-c", CLONE3)
        assert (code, said.strip()) == (0, "ENOSYS"), said


def test_an_ordinary_users_too(who: Who, place: Path) -> None:
    """As where a service manager has given it a group: the one we are in and what is below it are its own."""
    if who.user is None:
        pytest.skip("an ordinary user's")
    mine = place / "delegated"
    for group in (place, mine):
        group.mkdir()
        for path in (group, group / "cgroup.procs", group / "cgroup.subtree_control"):
            os.chown(path, who.user, who.user)
    try:
        with who.launch() as launch:
            (mine / "cgroup.procs").write_text(str(launch.process.pid))
            box = launch.create(who.plain + home(place / "excise") + text(CGROUP, place / "excise/one"))
            assert box.sh("grep ^0: /proc/self/cgroup") == "0::/one"
            assert group_of(box.pid) == f"{place.name}/excise/guests"
            launch.close(box)
    finally:
        for group in (place / "excise/guests", place / "excise", mine):
            if group.is_dir():
                group.rmdir()
