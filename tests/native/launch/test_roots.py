"""Roots, one after another, under the same PID 1: for root, for a user with subordinate ids and for one without."""

import errno
import os
import struct
from pathlib import Path

import pytest
from launched import (
    DISK_BYTES,
    DROP,
    ERRNO,
    FAILED,
    INODES,
    LAYER,
    LAYERS,
    LOWER,
    MAKE,
    MAKE_DIR,
    OPEN,
    OPENED,
    ROOT,
    ROOTED,
    SEAL,
    SIZE_BYTES,
    Answer,
    Box,
    Launch,
    Who,
    bind,
    descriptors,
    ends,
    number,
    text,
)

from reachable import reachable

NOTHING = b""


def offer(launch: Launch, box: Box, fields: bytes) -> Answer:
    """Ask for another root, and wait for what becomes of it."""
    launch.send(struct.pack("<II", ROOT, box.id) + fields)
    answer = launch.receive()
    assert (answer.type, answer.id) == (ROOTED, box.id), answer
    return answer


def seal(launch: Launch, box: Box, fields: bytes) -> int:
    """The upper of `box`, as a layer."""
    launch.ids += 1
    answer = offer(launch, box, fields + number(SEAL, launch.ids))
    assert ERRNO not in answer.fields, answer
    return launch.ids


def reset(launch: Launch, box: Box, fields: bytes) -> None:
    launch.send(struct.pack("<II", ROOT, box.id) + fields)
    box.live_again()
    answer = launch.receive()
    assert (answer.type, answer.id) == (ROOTED, box.id)
    assert ERRNO not in answer.fields, answer


def ask(launch: Launch, verb: int, id: int) -> Answer:
    launch.send(struct.pack("<II", verb, id))
    return launch.receive()


def test_hello_says_that_there_are_layers(launch: Launch) -> None:
    assert launch.hello.number(LAYERS) == 1


def test_a_sealed_upper_is_under_the_sandbox_and_under_others(who: Who, launch: Launch) -> None:
    box = launch.create(who.plain)
    box.sh("echo one > /file; mkdir /etc/new; rm /etc/group; chmod 700 /private; touch /tmp/kept /dev/shm/kept")
    layer = seal(launch, box, who.plain)
    box.sh("grep -q one /file && echo two > /file && test -d /etc/new && test ! -e /etc/group && test -e /tmp/kept")
    assert box.sh("stat -c %a /private; ls /dev/shm").split() == ["700", "kept"]
    for _ in range(2):
        child = launch.create(number(LAYER, layer) + who.plain)
        assert child.sh("cat /file; ls -A /tmp /dev/shm; test ! -e /etc/group; stat -c %u:%a /private").split() == [
            "one",
            "/dev/shm:",
            "/tmp:",
            "0:700",
        ]
        child.sh("echo changed > /file")
    assert box.sh("cat /file") == "two"


def test_another_life_has_another_root_and_nothing_of_the_one_before(who: Who, launch: Launch) -> None:
    box = launch.create(who.plain)
    box.sh("echo one > /file")
    layer = number(LAYER, seal(launch, box, who.plain))
    mounts = box.sh("wc -l < /proc/self/mountinfo")
    for _ in range(3):
        box.sh("echo two > /file; touch /tmp/x /dev/shm/x /dev/pts/ptmx; chmod 0 /dev/pts; sleep 1000 & echo started")
        reset(launch, box, layer + who.plain)
        assert box.sh("cat /file; ls -A /tmp /dev/shm; stat -c %a /dev/pts").split() == ["one", "/dev/shm:", "/tmp:", "755"]
        assert box.sh("wc -l < /proc/self/mountinfo") == mounts
        assert box.sh("for d in /proc/[0-9]*; do cat $d/comm; done 2>/dev/null | grep -c sleep || true") == "0"
    reset(launch, box, who.plain)
    box.sh("test ! -e /file")


def test_a_seal_waits_for_nobody(who: Who, launch: Launch) -> None:
    box = launch.create(who.plain)
    box.sh("sleep 1000 > /dev/null 2>&1 & echo $! > /pid")
    launch.ids += 1
    answer = offer(launch, box, who.plain + number(SEAL, launch.ids))
    assert answer.number(ERRNO) == errno.EBUSY
    assert box.sh("kill $(cat /pid) && echo killed") == "killed"
    assert ask(launch, OPEN, launch.ids).number(ERRNO) == errno.ENOENT


def test_nothing_is_sealed_where_nothing_was_written(who: Who, launch: Launch) -> None:
    for name in ("dev", "proc", "sys"):  # else they are what is written first, by whoever builds the root
        (who.image / name).mkdir(exist_ok=True)
    box = launch.create(who.plain)
    for script in ("true", "touch /file; rm /file", "touch /tmp/file"):
        box.sh(script)
        assert offer(launch, box, who.plain + number(SEAL, 1000)).number(ERRNO) == errno.ENODATA
    box.sh("rm /private/key")
    seal(launch, box, who.plain)
    box.sh("test ! -e /private/key")


def test_limits_hold_over_what_was_sealed(who: Who, launch: Launch) -> None:
    limited = who.plain + number(DISK_BYTES, 1 << 20) + number(INODES, 100)
    box = launch.create(limited)
    box.sh("head -c 700000 /dev/zero > /one; mkdir /d; for i in $(seq 60); do : > /d/$i; done")
    launch.ids += 1
    answer = offer(launch, box, limited + number(SEAL, launch.ids))
    assert 700000 <= answer.number(SIZE_BYTES) <= 1 << 20
    assert "No space" in box.fails("head -c 700000 /dev/zero > /two")
    assert "No space" in box.fails("rm /two; mkdir /e; for i in $(seq 60); do : > /e/$i || exit 1; done")
    reset(launch, box, number(LAYER, launch.ids) + limited)
    box.sh("head -c 700000 /dev/zero > /two")


def test_a_full_upper_can_be_sealed(who: Who, launch: Launch) -> None:
    limited = who.plain + number(DISK_BYTES, 1 << 16) + number(INODES, 50) + text(MAKE_DIR, "/work")
    box = launch.create(limited)
    box.fails("cat /dev/zero > /full; for i in $(seq 100); do : > /$i || exit 1; done")
    seal(launch, box, limited)
    assert "No space" in box.fails("cat /usr/bin/env > /more")
    assert box.sh("ls -d /work /full").split() == ["/full", "/work"]


def test_a_layer_outlives_its_sandbox_and_goes_when_it_is_dropped(who: Who, launch: Launch) -> None:
    box = launch.create(who.plain)
    box.sh("echo kept > /file")
    layer = seal(launch, box, who.plain)
    launch.close(box)
    child = launch.create(number(LAYER, layer) + who.plain)
    assert ask(launch, OPEN, 9999).number(ERRNO) == errno.ENOENT  # it has closed what it sent with the answer before
    before = descriptors(launch)
    launch.send(struct.pack("<II", DROP, layer))
    answer = launch.refuse(number(LAYER, layer) + who.plain)
    assert (answer.type, answer.number(ERRNO)) == (FAILED, errno.ENOENT)
    assert descriptors(launch) == before - 1
    assert child.sh("cat /file") == "kept"


def test_what_was_written_can_be_read_outside(who: Who, launch: Launch) -> None:
    box = launch.create(who.plain)
    box.sh("echo text > /file")
    seen = [written(launch, box.id, who)]
    layer = seal(launch, box, who.plain)
    seen.append(written(launch, layer, who))
    assert seen == ["text\n", "text\n"]


def written(launch: Launch, upper: int, who: Who) -> str:
    """What /file holds there. It is owned as in an image's layer, whoever the sandbox's root is."""
    (directory,) = ask(launch, OPEN, upper).descriptors
    try:
        assert os.stat("file", dir_fd=directory).st_uid == (who.user or 0)
        with open(os.open("file", os.O_RDONLY, dir_fd=directory)) as file:  # noqa: PTH123 - in a directory that has no path
            return file.read()
    finally:
        os.close(directory)


def test_nobody_writes_into_what_was_sealed(who: Who, launch: Launch) -> None:
    box = launch.create(who.plain)
    box.sh("echo text > /file")
    (directory,) = ask(launch, OPEN, box.id).descriptors  # from before, when it could be written
    try:
        seal(launch, box, who.plain)
        with pytest.raises(OSError, match="Read-only"):
            os.open("file", os.O_WRONLY, dir_fd=directory)
    finally:
        os.close(directory)
    box.sh("echo more >> /file")


def test_a_layer_may_be_filled_from_outside(who: Who, launch: Launch) -> None:
    launch.ids += 1
    answer = ask(launch, MAKE, launch.ids)
    assert (answer.type, answer.id) == (OPENED, launch.ids)
    (directory,) = answer.descriptors
    try:
        if who.is_root:  # another may write there in a user namespace of its ids alone
            os.close(os.open("made", os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=directory))
            assert launch.create(number(LAYER, launch.ids) + who.plain).sh("stat -c %u:%a /made") == "0:600"
    finally:
        os.close(directory)


def test_roots_that_cannot_be_are_told(who: Who, launch: Launch) -> None:
    box = launch.create(who.plain)
    box.sh("touch /written")
    assert offer(launch, box, number(LAYER, 4000) + who.plain + number(SEAL, 5000)).number(ERRNO) == errno.ENOENT
    assert offer(launch, box, NOTHING).number(ERRNO) == errno.EINVAL
    assert box.sh("echo here") == "here"
    gone = Box(999, box.link)
    assert offer(launch, gone, who.plain).number(ERRNO) == errno.ECHILD
    answer = launch.refuse(who.plain + number(SEAL, 77))
    assert answer.number(ERRNO) == errno.EINVAL


def test_one_root_at_a_time(who: Who, launch: Launch) -> None:
    """The second of two offers is refused; the first is for a life that has not begun, and waits."""
    box = launch.create(who.plain)
    launch.send(struct.pack("<II", ROOT, box.id) + who.plain)
    assert offer(launch, box, who.plain).number(ERRNO) == errno.EALREADY
    assert box.sh("echo still the same life") == "still the same life"
    box.live_again()
    assert ERRNO not in launch.receive().fields
    assert box.sh("echo another") == "another"


def test_a_root_that_cannot_be_built_ends_the_sandbox_and_no_other(who: Who, launch: Launch, tmp_path: Path) -> None:
    """A file is to be shown where a directory is that is not empty."""
    (tmp_path / "file").write_text("text")
    reachable(tmp_path)
    fields = who.plain + bind(tmp_path / "file", "/deep/file")
    box, other = launch.create(fields), launch.create(who.plain)
    box.sh("mv /deep /away; mkdir -p /deep/file/full")
    launch.ids += 1
    answer = offer(launch, box, fields + number(SEAL, launch.ids))
    assert answer.number(ERRNO) in (errno.EEXIST, errno.EISDIR, errno.ENOTDIR)
    assert "/deep/file" in answer.step
    assert ends(box.pidfd)
    assert launch.receive().id == box.id
    assert other.sh("echo lives") == "lives"


def test_what_lies_in_the_way_decides_nothing(who: Who, launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown/file").write_text("text")
    reachable(tmp_path / "shown")
    fields = who.plain + bind(tmp_path / "shown", "/a/b/shown") + text(MAKE_DIR, "/w/d")
    for script in (
        "mv /a /away; echo > /a; rm -r /w; echo > /w",
        "mv /a /away; mkdir /a; ln -s nowhere /a/b; rm -r /w; ln -s w /w",
        "mv /a /away; mkdir -p /a/b; echo > /a/b/shown; rmdir /w/d; mkfifo /w/d",
    ):
        box = launch.create(fields)
        box.sh(script)
        layer = seal(launch, box, fields)
        assert box.sh("cat /a/b/shown/file; cd /w/d && pwd") == "text/w/d"
        assert launch.create(number(LAYER, layer) + fields).sh("cat /a/b/shown/file; cd /w/d && pwd") == "text/w/d"


def test_mounts_are_there_in_every_root(who: Who, launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown/file").write_text("text")
    reachable(tmp_path / "shown")
    fields = who.plain + bind(tmp_path / "shown", "/deep/shown")
    box = launch.create(fields)
    # The directory above it can be moved away, and the mount with it; the next root has it where it belongs.
    box.sh("mv /deep /elsewhere; mkdir -p /deep; ln -s /etc /deep/shown; cat /elsewhere/shown/file")
    seal(launch, box, fields)
    assert box.sh("cat /deep/shown/file; ls -A /elsewhere/shown") == "text"
    reset(launch, box, fields)
    assert box.sh("cat /deep/shown/file") == "text"
    box.fails("touch /deep/shown/new")


def test_lowers_may_be_many(who: Who, launch: Launch) -> None:
    box = launch.create(who.plain)
    layers: list[int] = []
    for count in range(100):
        box.sh(f"echo {count} > /file; : > /{count}")
        layers.insert(0, seal(launch, box, b"".join(number(LAYER, layer) for layer in layers) + who.plain))
    assert box.sh("cat /file; ls -d /[0-9]* | wc -l").split() == ["99", "100"]
    child = launch.create(b"".join(number(LAYER, layer) for layer in layers[50:]) + who.plain)
    assert child.sh("cat /file; ls -d /[0-9]* | wc -l").split() == ["49", "50"]


def settle(launch: Launch, box: Box) -> None:
    """Both have closed what they held of the root before: the guest's by who starts its first program."""
    ask(launch, OPEN, 9999)
    box.sh("true")


def test_nothing_is_left_of_a_hundred_roots(who: Who, launch: Launch) -> None:
    box = launch.create(who.plain)
    box.sh("echo one > /first")
    layer = number(LAYER, seal(launch, box, who.plain))
    reset(launch, box, layer + who.plain)
    settle(launch, box)
    before = descriptors(launch), len(list(Path(f"/proc/{box.pid}/fd").iterdir()))
    for _ in range(100):
        reset(launch, box, layer + who.plain)
    settle(launch, box)
    after = descriptors(launch), len(list(Path(f"/proc/{box.pid}/fd").iterdir()))
    # Of the guest's a few come and go with each program.
    assert after[0] == before[0]
    assert abs(after[1] - before[1]) < 10
    assert box.sh("ls /proc/self/fd").split() == ["0", "1", "2", "3"]


def test_the_image_is_never_written(who: Who, launch: Launch) -> None:
    box = launch.create(who.plain)
    box.sh("echo one > /first")
    layer = number(LAYER, seal(launch, box, who.plain))
    box.sh("rm -rf /private /etc/passwd")
    reset(launch, box, layer + who.plain)
    assert box.sh("cat /private/key") == "its own"
    assert (who.image / "private/key").read_text() == "its own"


def test_a_create_names_layers_and_directories_in_any_order(who: Who, launch: Launch) -> None:
    box = launch.create(who.plain)
    box.sh("echo sealed > /etc/passwd")
    layer = number(LAYER, seal(launch, box, who.plain))
    plain = text(LOWER, who.image)
    assert launch.create(layer + who.plain).sh("cat /etc/passwd") == "sealed"
    assert launch.create(plain + layer + who.plain.removeprefix(plain)).sh("head -c 4 /etc/passwd") == "root"
