"""What a machine is made of, from a spec; and the line that gets an exec into its sandbox, run by a real shell."""

import shlex
import subprocess
from pathlib import Path

import pytest

from excise.errors import SpecError
from excise.guestless.inside import Start
from excise.spec import Limits
from excise.substrates.vm import boot, plan
from excise.substrates.vm.entering import Entrance
from excise.substrates.vm.making import Options
from excise.vmm.accel import Accel


def made(accel: Accel, **changes: object) -> tuple[str, ...]:
    parts = {name: Path(f"/{name}") for name in ("kernel", "initrd", "system", "image", "private")}
    given = {**parts, "memory_bytes": 1 << 29, "cpus": 1, "ways": ("ssh",), **changes}
    return plan.Plan(accel=accel, **given).arguments()  # pyright: ignore[reportArgumentType] - the changes are the tests' own


def test_only_the_private_disk_is_written_to_and_they_come_in_order() -> None:
    drives = [argument for argument in made(Accel("kvm")) if argument.startswith("if=none")]
    assert ["readonly=on" in drive for drive in drives] == [True, True, False]
    assert [drive.partition("file=")[2].split(",")[0] for drive in drives] == ["/system", "/image", "/private"]


def test_a_comma_in_a_path_is_not_qemus() -> None:
    assert any("file=/a,,b," in argument for argument in made(Accel("kvm"), private=Path("/a,b")))


def test_there_is_no_network_card() -> None:
    assert not any("net" in argument for argument in made(Accel("tcg"), ways=("guest", "ssh")))


def test_addresses_are_as_they_were_only_where_they_are_translated() -> None:
    lines = [made(accel)[made(accel).index("-append") + 1].split() for accel in (Accel("tcg", "why"), Accel("kvm"))]
    assert [plan.EMULATED in line for line in lines] == [True, False]


def test_limits_are_a_slice() -> None:
    said = plan.units(("ssh",), Limits(memory_bytes=1 << 26, pids=32, cpus=0.5))["sandbox.slice"].decode().splitlines()
    assert {"MemoryMax=67108864", "MemorySwapMax=0", "TasksMax=32", "CPUQuota=50%"} <= set(said)
    said = plan.units(("ssh",), Limits())["sandbox.slice"].decode()
    assert not any(word in said for word in ("MemoryMax", "TasksMax", "CPUQuota"))


def test_a_machine_has_the_limit_and_room_for_its_system() -> None:
    assert plan.memory_bytes(Limits(memory_bytes=1 << 26), 1 << 30) == (1 << 26) + plan.RESERVE_BYTES
    assert plan.memory_bytes(Limits(), 1 << 30) == (1 << 30) + plan.RESERVE_BYTES
    assert [plan.cpus(Limits(cpus=wanted), 1) for wanted in (0.5, 1.5, None)] == [1, 2, 1]


def test_every_way_in_is_a_unit_that_is_wanted() -> None:
    units = plan.units(("guest", "ssh"), Limits())
    wanted = units["excise.target"].decode().splitlines()
    for way in ("guest", "ssh"):
        assert f"Wants=excise-{way}.service" in wanted
        assert f"file:/dev/excise.{way}" in units[f"excise-{way}.service"].decode()


def test_a_full_disk_must_be_told_only_where_it_is_limited() -> None:
    assert "nodelalloc" in plan.config("/work", Limits(disk_bytes=1 << 24))
    assert "nodelalloc" not in plan.config("/work", Limits(memory_bytes=1 << 24))


def test_options_are_in_the_address_as_far_as_they_were_said() -> None:
    assert Options().words("vm") == "vm"
    assert Options(memory=1024, cpus=2).words("vm+guest") == "vm+guest?memory=1024&cpus=2"


def test_what_is_a_machines_own_is_an_archive_that_others_read(tmp_path: Path) -> None:
    files = {"host_key": b"secret\n", "guest": b"\x7fELF" + bytes(1001)}
    archive = boot.own("EXCISE_WORKDIR=/\n", {"a.service": b"[Unit]\n"}, files)
    assert len(archive) % 4 == 0
    cpio = subprocess.run(["cpio", "-idm", "--quiet"], cwd=tmp_path, input=archive, capture_output=True, check=False)
    if cpio.returncode == 0:
        assert {path.name: path.read_bytes() for path in (tmp_path / "excise/own").iterdir()} == files


# ---- into the sandbox

ODD = {"PLAIN": "x", "QUOTES": 'it\'s "so"', "LINES": "one\ntwo\n", "DOLLAR": "$HOME `id` \\", "EMPTY": ""}


def entered(line: str, entrance: Entrance, tmp_path: Path) -> list[str]:
    """The words that the line ends as, by a shell, with its files and programs replaced."""
    command, text = entrance.keep()
    assert command.endswith("/run/excise/env")
    (tmp_path / "env").write_bytes(text)
    (tmp_path / "group").touch()
    (tmp_path / "show").write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n')
    (tmp_path / "show").chmod(0o755)
    for path, there in (
        ("/run/excise/env", tmp_path / "env"),
        ("/sys/fs/cgroup/sandbox.slice/cgroup.procs", tmp_path / "group"),
        ("/proc/self/oom_score_adj", tmp_path / "group"),
        ("/usr/bin/busybox env -i", tmp_path / "show"),
    ):
        line = line.replace(path, shlex.quote(str(there)), 1)
    seen = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True)
    return seen.stdout.split("\0")[:-1]


def test_words_and_variables_arrive_as_they_are(tmp_path: Path) -> None:
    entrance = Entrance(root=tmp_path, user=None, variables=ODD)
    line = entrance.command(Start(argv=("printf", "%s\n", "a'b", ""), env={**ODD, "OWN": "of\nthis"}))
    words = entered(line, entrance, tmp_path)
    said = [f"{name}={value}" for name, value in ODD.items()]
    assert words == [*said, "OWN=of\nthis", "/usr/bin/busybox", "chroot", "/sandbox", "printf", "%s\n", "a'b", ""]


def test_no_command_line_holds_what_every_action_has(tmp_path: Path) -> None:
    entrance = Entrance(root=tmp_path, user=None, variables={"TOKEN": "hidden"})
    assert "hidden" not in entrance.command(Start(argv=("true",), env={"TOKEN": "hidden"}))


def test_another_user_is_the_images_own(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("ann:x:1000:1001::/:/bin/sh\n")
    entrance = Entrance(root=tmp_path, user="ann", variables={})
    assert "--setgid=1001 --setuid=1000" in entrance.command(Start(argv=("true",), env={}))
    assert "chroot /sandbox" in entrance.command(Start(argv=("true",), env={}, user="0"))
    with pytest.raises(SpecError, match="no user 'bob'"):
        entrance.command(Start(argv=("true",), env={}, user="bob"))


def test_a_terminals_program_is_told_its_kind(tmp_path: Path) -> None:
    for variables, wanted in (({}, True), ({"TERM": "dumb"}, False)):
        entrance = Entrance(root=tmp_path, user=None, variables=variables)
        assert ("TERM=xterm" in entrance.command(Start(argv=("true",), env={}, terminal=True))) is wanted
