"""What the launcher is told, as data and as bytes; and that both sides number it alike."""

import re
import struct
from pathlib import Path

import pytest

from excise.errors import SpecError
from excise.guest import wire
from excise.spec import Limits, Mount, Spec
from excise.storage.image import Image
from excise.substrates.namespace import plan, request
from excise.substrates.namespace.request import Bind, Cgroup, Create

TOP = Path(__file__).parents[4]
IMAGE = Image(
    name="i", digest="sha256:0", root=Path("/cache/root"), binds=(("/usr", "/usr"),), env={"A": "1"}, workdir="/work", user="7"
)


def test_an_image_and_nothing_else() -> None:
    asked = plan.plan(Spec(), IMAGE)
    assert asked == Create(lowers=("/cache/root",), binds=(Bind("/usr", "/usr"),), hostname="localhost", directories=("/work",))


def test_all_a_spec_can_say() -> None:
    spec = Spec(
        workdir="/elsewhere",
        mounts=(Mount("/data", "/mnt/data"), Mount("/out", "/mnt/out", read_only=False)),
        devices=("/dev/fuse",),
        limits=Limits(disk_bytes=1 << 20, inodes=100),
    )
    groups = (Cgroup("/sys/fs/cgroup/pids/x", (("pids.max", "5"),)),)
    asked = plan.plan(spec, IMAGE, cgroups=groups, sudo=True, listen_port=3128)
    assert asked.binds == (Bind("/usr", "/usr"), Bind("/data", "/mnt/data"), Bind("/out", "/mnt/out", read_only=False))
    assert asked.directories == ("/elsewhere",)
    assert asked.devices == ("/dev/fuse",)
    assert (asked.disk_bytes, asked.inodes) == (1 << 20, 100)
    assert asked.cgroups == groups
    assert (asked.may_gain_privileges, asked.listen_port) == (True, 3128)


@pytest.mark.parametrize(
    "spec",
    [
        Spec(workdir="relative"),
        Spec(workdir="/a/../b"),
        Spec(mounts=(Mount("data", "/mnt"),)),
        Spec(mounts=(Mount("/data", "/"),)),
        Spec(mounts=(Mount("/data", "/mnt/../etc"),)),
        Spec(mounts=(Mount("/data", "/proc"),)),
        Spec(mounts=(Mount("/data", "/sys/x"),)),
        Spec(mounts=(Mount("/data", "//./dev"),)),
        Spec(mounts=tuple(Mount("/data", f"/mnt/{number}") for number in range(plan.MOST_BINDS))),
        Spec(devices=("/etc/passwd",)),
        Spec(devices=("/dev/../etc/passwd",)),
        Spec(devices=("/dev/input/event0",)),
    ],
)
def test_paths_that_lead_elsewhere_are_refused(spec: Spec) -> None:
    with pytest.raises(SpecError):
        plan.plan(spec, IMAGE)


def test_more_inodes_than_there_can_be_are_as_many_as_there_can_be() -> None:
    assert plan.plan(Spec(limits=Limits(inodes=1 << 62)), IMAGE).inodes == 1 << 50


def test_devices_that_every_sandbox_has_are_not_shown_again() -> None:
    spec = Spec(devices=("/dev/null", "/dev/fuse", "/dev/urandom", "/dev/fuse"))
    assert plan.plan(spec, IMAGE).devices == ("/dev/fuse",)


def test_the_launcher_takes_as_many_mounts() -> None:
    header = (TOP / "native/launch/plan.h").read_text()
    assert re.findall(r"PLAN_BINDS = (\d+)", header) == [str(plan.MOST_BINDS)]


def test_who_actions_run_as() -> None:
    assert plan.user(Spec(), IMAGE, users=True) == "7"
    assert plan.user(Spec(user="root"), IMAGE, users=True) == "root"
    assert plan.user(Spec(), IMAGE, users=False) is None


def test_the_packet_says_it_all() -> None:
    asked = Create(
        lowers=("/top", "/below"),
        binds=(Bind("/s", "/t", read_only=False),),
        hostname="h",
        disk_bytes=4096,
        inodes=10,
        cgroups=(Cgroup("/g1", (("a", "1"), ("b", "2"))), Cgroup("/home/g2", (), ("cpu", "pids"))),
        may_gain_privileges=True,
        listen_port=3128,
        directories=("/work",),
        devices=("/dev/fuse",),
    )
    packet = request.create(9, asked, shell=True)
    assert struct.unpack_from("<II", packet) == (request.CREATE, 9)

    def eight(number: int) -> bytes:
        return number.to_bytes(8, "little")

    assert list(wire.fields(packet[8:])) == [
        (request.TAG_LOWER, b"/top"),
        (request.TAG_LOWER, b"/below"),
        (request.TAG_BIND, b"/s\0/t\0\0"),
        (request.TAG_DEVICE, b"/dev/fuse"),
        (request.TAG_DISK_BYTES, eight(4096)),
        (request.TAG_INODES, eight(10)),
        (request.TAG_PRIVILEGES, eight(1)),
        (request.TAG_HOSTNAME, b"h"),
        (request.TAG_CGROUP, b"/g1"),
        (request.TAG_WRITE, b"a\x001"),
        (request.TAG_WRITE, b"b\x002"),
        (request.TAG_CGROUP_HOME, b"/home\0+cpu +pids"),
        (request.TAG_CGROUP, b"/home/g2"),
        (request.TAG_MAKE_DIR, b"/work"),
        (request.TAG_LISTEN, eight(3128)),
        (request.TAG_SHELL, eight(1)),
    ]


def test_an_answer_is_read() -> None:
    packet = struct.pack("<II", request.FAILED, 3) + wire.field(request.TAG_STEP, b"mount") + wire.number(request.TAG_ERRNO, 13)
    answer = request.answer(packet)
    assert (answer.type, answer.id) == (request.FAILED, 3)
    assert (answer.text(request.TAG_STEP), answer.number(request.TAG_ERRNO)) == ("mount", 13)
    assert (answer.text(request.TAG_MESSAGE), answer.number(request.TAG_USERS)) == ("", 0)


def test_the_launcher_has_the_same_numbers() -> None:
    header = (TOP / "native/launch/request.h").read_text()
    theirs = {name: int(number) for name, number in re.findall(r"\bLAUNCH_(\w+) = (\d+)", header)}
    named = {name for name, value in vars(request).items() if name.isupper() and isinstance(value, int) and name[0] != "_"}
    named.remove("MAX_PACKET")
    ours = {name.removeprefix("TAG_"): getattr(request, name) for name in named}
    assert ours == theirs
