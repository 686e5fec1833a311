"""Nothing of a sandbox stays, whoever of the three ends first; what cannot be made is told, and leaves nothing either."""

import errno
import os
import select
import signal
import struct
from collections.abc import Generator
from pathlib import Path

import pytest
from launched import (
    BIND,
    CGROUP,
    CLOSE,
    CREATE,
    DEVICE,
    DISK_BYTES,
    ERRNO,
    FAILED,
    GONE,
    HOSTNAME,
    LISTEN,
    LOWER,
    MAKE_DIR,
    WRITE,
    Launch,
    Who,
    bind,
    children,
    descriptors,
    ends,
    number,
    text,
)


def test_an_image_that_is_not_there(who: Who, launch: Launch, tmp_path: Path) -> None:
    answer = launch.refuse(text(LOWER, tmp_path / "nothing"))
    assert answer.number(ERRNO) in (errno.ENOENT, errno.EACCES)
    assert str(tmp_path / "nothing") in answer.step
    assert children(launch) == []
    launch.create(who.plain)


def test_what_fails_in_the_child_is_told(who: Who, launch: Launch) -> None:
    answer = launch.refuse(who.plain + text(MAKE_DIR, "/etc/passwd/below"))
    assert (answer.number(ERRNO), answer.step) == (errno.ENOTDIR, "make /etc/passwd/below")
    assert children(launch) == []


MALFORMED = {
    "no image": b"",
    "an unknown field": number(99, 1),
    "a relative path": text(LOWER, "relative"),
    "a short number": text(DISK_BYTES, "1"),
    "no bytes at all": number(DISK_BYTES, 0),
    "a port too large": number(LISTEN, 65536),
    "a field that is cut short": struct.pack("<HHI", LOWER, 0, 100) + b"/",
    "a target without an end": struct.pack("<HHI", BIND, 0, 6) + b"/a\0/b\x01",
    "a device elsewhere": text(DEVICE, "/dev/../etc/passwd"),
    "a limit of no group": struct.pack("<HHI", WRITE, 0, 3) + b"a\0b",
    "a path with a NUL": struct.pack("<HHI", LOWER, 0, 4) + b"/a\0b",
    "too many binds": bind(Path("/usr"), "/usr") * 65,
    "a name too long": text(HOSTNAME, "x" * 65),
}


@pytest.mark.parametrize("fields", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_request_is_refused_and_no_more(root: Who, fields: bytes) -> None:
    with root.launch() as launch:
        launch.refuse((root.plain if fields else b"") + fields)
        assert launch.create(root.plain).sh("echo on") == "on"


def test_the_wrong_descriptors(root: Who) -> None:
    with root.launch() as launch:
        launch.send(struct.pack("<II", CREATE, 77) + root.plain)
        assert launch.receive()[:2] == (FAILED, 77)
        before = descriptors(launch)
        launch.begin(root.plain, [launch.control.fileno()])
        assert launch.receive().type == FAILED
        assert descriptors(launch) == before


# ---- ends


def test_close(who: Who, launch: Launch) -> None:
    launch.close(launch.create(who.plain))
    before = descriptors(launch)
    box = launch.create(who.plain)
    pidfd = os.dup(box.pidfd)
    launch.close(box)
    assert select.select([pidfd], [], [], 0)[0]
    os.close(pidfd)
    assert children(launch) == []
    assert descriptors(launch) == before


def test_close_of_one_that_is_not_there(who: Who, launch: Launch) -> None:
    launch.send(struct.pack("<II", CLOSE, 4711))
    assert launch.receive()[:2] == (GONE, 4711)


def test_close_while_it_is_made(who: Who, launch: Launch) -> None:
    box = launch.begin(who.plain)
    launch.send(struct.pack("<II", CLOSE, box.id))
    answers = [launch.receive()]
    if answers[0].type not in (FAILED, GONE):
        os.close(answers[0].descriptors[0])
        answers.append(launch.receive())
    assert answers[-1].type in (FAILED, GONE)
    assert children(launch) == []


def test_many_at_once(who: Who, launch: Launch) -> None:
    boxes = {box.id: box for box in [launch.begin(who.plain) for _ in range(20)]}
    for _ in range(20):
        answer = launch.receive()
        launch.finish(boxes[answer.id], answer)
    for box in boxes.values():
        assert box.sh(f"echo {box.id}") == str(box.id)
    for box in boxes.values():
        launch.send(struct.pack("<II", CLOSE, box.id))
    assert sorted(launch.receive().id for _ in boxes) == sorted(boxes)


def test_the_end_of_the_link_is_the_end_of_the_sandbox(who: Who, launch: Launch) -> None:
    box = launch.create(who.plain)
    box.link.close()
    assert launch.receive()[:2] == (GONE, box.id)


def test_a_guest_that_is_killed(who: Who, launch: Launch) -> None:
    other = launch.create(who.plain)
    box = launch.create(who.plain)
    signal.pidfd_send_signal(box.pidfd, signal.SIGKILL)
    assert launch.receive()[:2] == (GONE, box.id)
    assert other.sh("echo alive") == "alive"


def test_a_launcher_that_is_killed(who: Who, launch: Launch) -> None:
    boxes = [launch.create(who.plain) for _ in range(3)]
    launch.process.send_signal(signal.SIGKILL)
    assert all(ends(box.pidfd) for box in boxes)


def test_a_client_that_is_gone(who: Who) -> None:
    with who.launch() as launch:
        boxes = [launch.create(who.plain) for _ in range(3)]
        launch.begin(who.plain)
        launch.control.close()
        assert launch.process.wait(10) == 0
        assert all(ends(box.pidfd) for box in boxes)


def test_nothing_is_mounted_on_the_host(who: Who) -> None:
    def mounted() -> list[str]:
        """All but what a container engine has mounted meanwhile."""
        return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if "/docker/" not in line]

    before = mounted()
    with who.launch() as launch:
        launch.create(who.plain)
        assert mounted() == before


# ---- control groups


@pytest.fixture
def groups() -> Generator[list[Path]]:
    """Two control groups of this machine that nobody has made yet: v1's pids and cpu, or one of v2."""
    tops = [Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup/cpu")]
    if not tops[0].is_dir():
        tops = [Path("/sys/fs/cgroup")]
    places = [top / f"launch-test-{os.getpid()}" for top in tops]
    yield places
    for place in places:
        if place.is_dir():
            place.rmdir()


def test_cgroups_are_joined_and_removed(root: Who, groups: list[Path]) -> None:
    asked = b"".join(text(CGROUP, group) for group in groups)
    with root.launch() as launch:
        box = launch.create(root.plain + asked)
        for group in groups:
            assert str(box.pid) in (group / "cgroup.procs").read_text().split()
        assert all(line.endswith(":/") for line in box.sh("grep -E ':(pids|cpu)' /proc/self/cgroup").splitlines())
        launch.close(box)
        assert not any(group.exists() for group in groups)
        box = launch.create(root.plain + asked)
        signal.pidfd_send_signal(box.pidfd, signal.SIGKILL)
        launch.receive()
        assert not any(group.exists() for group in groups)
        launch.refuse(root.plain + asked + text(MAKE_DIR, "/etc/passwd/below"))
        assert not any(group.exists() for group in groups)
        launch.create(root.plain + asked)
    assert not any(group.exists() for group in groups)


def test_a_limit_that_cannot_be_set_is_told(root: Who, groups: list[Path]) -> None:
    limit = struct.pack("<HHI", WRITE, 0, 10) + b"no.such\0" + b"10"
    with root.launch() as launch:
        answer = launch.refuse(root.plain + text(CGROUP, groups[0]) + limit)
        assert "no.such" in answer.step
        assert not groups[0].exists()
