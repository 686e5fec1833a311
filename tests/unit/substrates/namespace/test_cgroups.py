"""Control groups: what is found, what is written, whose they are. v2 with controllers is only seen here as texts and plans."""

import asyncio
import os
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from excise.guest.carrier import pair
from excise.spec import Limits
from excise.substrates.namespace import cgroups
from excise.substrates.namespace.cgroups import Groups, Tree
from excise.substrates.namespace.launcher import Launcher
from excise.substrates.namespace.request import Cgroup, Create

V1_MOUNTS = """\
30 23 0:26 / /sys rw,nosuid - sysfs sysfs rw
33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
HOME = "home"
V2_MOUNTS = "34 24 0:29 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"
CONTAINER_MOUNTS = "34 24 0:29 /docker/abc /sys/fs/cgroup ro,nosuid - cgroup cgroup rw,memory\n"


def test_the_trees_are_read_from_the_kernels_own_texts() -> None:
    found = cgroups.trees(V1_MOUNTS, "5:memory:/user.slice\n3:cpu,cpuacct:/\n1:name=systemd:/a\n0::/b/c\n")
    assert [(tree.version, set(tree.controllers), str(tree.own)) for tree in found] == [
        (1, {"cpu"}, "/sys/fs/cgroup/cpu,cpuacct"),
        (1, {"memory"}, "/sys/fs/cgroup/memory/user.slice"),
        (1, set(), "/sys/fs/cgroup/systemd"),
        (2, set(), "/sys/fs/cgroup/unified/b/c"),
    ]
    (unified,) = cgroups.trees(V2_MOUNTS, "0::/user.slice/user-1000.slice/user@1000.service/app.slice/x.scope\n")
    assert unified.own == Path("/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice/x.scope")
    (contained,) = cgroups.trees(CONTAINER_MOUNTS, "5:memory:/docker/abc/inner\n")
    assert contained.own == Path("/sys/fs/cgroup/inner")
    (outside,) = cgroups.trees(CONTAINER_MOUNTS, "5:memory:/../other\n")
    assert outside.own == outside.top


def test_on_v2_the_places_are_those_above_that_are_ours(tmp_path: Path) -> None:
    """As under a systemd user manager: its own group is ours, the slices above it are not."""
    leaf = tmp_path / "user.slice/user@1000.service/app.slice/run.scope"
    leaf.mkdir(parents=True)
    for place in (leaf, leaf.parents[0], leaf.parents[1]):
        (place / "cgroup.procs").touch()
    tree = Tree(2, frozenset(), tmp_path, leaf)
    assert list(cgroups.candidates(tree)) == [leaf, leaf.parents[0], leaf.parents[1]]


def test_a_directory_that_is_no_control_group_gives_nothing_and_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").touch()
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (tmp_path / "cgroup.subtree_control").touch()
    tree = Tree(2, frozenset(), tmp_path, tmp_path)
    assert cgroups.offered(tmp_path) == {"cpu", "memory", "pids"}
    assert cgroups._unified(tree) == {}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cgroup.controllers", "cgroup.procs", "cgroup.subtree_control"]


def test_limits_become_one_group_on_v2_and_one_a_controller_on_v1() -> None:
    limits = Limits(memory_bytes=1 << 20, cpus=1.5, pids=64)
    top = Path("/sys/fs/cgroup/excise")
    unified = Groups(dict.fromkeys(cgroups.CONTROLLERS, top), dict.fromkeys(cgroups.CONTROLLERS, 2), swap=True)
    (group,) = unified.plan(limits, "namespace-1-2-abc", "launcher-1-2-def")
    assert group.directory == "/sys/fs/cgroup/excise/launcher-1-2-def/namespace-1-2-abc"
    assert group.controllers == ("memory", "cpu", "pids")
    assert group.values == (
        ("memory.max", "1048576"),
        ("memory.swap.max", "0"),
        ("cpu.max", "150000 100000"),
        ("pids.max", "64"),
    )
    old = Groups({name: Path("/c") / name for name in cgroups.CONTROLLERS}, dict.fromkeys(cgroups.CONTROLLERS, 1), swap=True)
    assert old.plan(limits, "x", "home") == (
        Cgroup("/c/memory/x", (("memory.limit_in_bytes", "1048576"), ("memory.memsw.limit_in_bytes", "1048576"))),
        Cgroup("/c/cpu/x", (("cpu.cfs_period_us", "100000"), ("cpu.cfs_quota_us", "150000"))),
        Cgroup("/c/pids/x", (("pids.max", "64"),)),
    )
    assert old.plan(Limits(), "x", "home") == ()  # nothing is asked for, nothing is made
    assert old.enforced == {"memory_bytes", "cpus", "pids"}
    assert Groups().enforced == frozenset()


def test_a_machine_may_have_some_controllers_in_one_tree_and_some_in_another() -> None:
    groups = Groups({"memory": Path("/v1/excise"), "pids": Path("/v2/excise")}, {"memory": 1, "pids": 2})
    assert groups.plan(Limits(memory_bytes=1 << 20, pids=64), "x", "home") == (
        Cgroup("/v1/excise/x", (("memory.limit_in_bytes", "1048576"),)),
        Cgroup("/v2/excise/home/x", (("pids.max", "64"),), ("pids",)),
    )


def test_the_least_and_the_most_are_what_the_kernel_takes() -> None:
    assert cgroups.values("cpu", 0.001, 2, swap=False) == (("cpu.max", "1000 100000"),)
    assert cgroups.values("cpu", 1e9, 2, swap=False) == (("cpu.max", "819200000 100000"),)
    assert cgroups.values("pids", 1 << 40, 2, swap=False) == (("pids.max", "4194304"),)


# ---- on the machine's own trees


@pytest.fixture(scope="session")
def found(must_work: Callable[[str, str], None]) -> Groups:
    groups = cgroups.find()
    if not groups.parents:
        must_work("cgroups", "no controller can be had by this user")
    return groups


@pytest.mark.parametrize(
    "limits", [Limits(memory_bytes=64 << 20, cpus=0.5, pids=10), Limits(memory_bytes=1 << 62, cpus=1e9, pids=1 << 40)]
)
def test_what_is_found_takes_its_limits(found: Groups, limits: Limits) -> None:
    name = cgroups.new_name(os.getpid())
    planned = found.plan(limits, name, HOME)
    made: list[Path] = []
    try:
        for group in planned:
            Path(group.directory).mkdir()
            made.append(Path(group.directory))
            for file, value in group.values:
                (made[-1] / file).write_text(value)
                assert (made[-1] / file).read_text().strip() == value
    finally:
        for directory in made:
            directory.rmdir()
    assert made


@pytest.fixture
def sleeper() -> Generator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


def test_a_dead_owners_groups_are_removed_and_what_runs_in_them_is_ended(
    found: Groups, sleeper: subprocess.Popen[bytes]
) -> None:
    with subprocess.Popen(["sleep", "1000"]) as owner:
        name = cgroups.new_name(owner.pid)
        groups = [Path(group.directory) for group in found.plan(Limits(memory_bytes=64 << 20, pids=10), name, HOME)]
        try:
            for group in groups:
                group.mkdir()
                (group / "cgroup.procs").write_text(str(sleeper.pid))
            assert name not in cgroups.collect()  # its owner lives
            assert sleeper.poll() is None
        finally:
            owner.kill()
    assert name in cgroups.collect()
    assert not any(group.exists() for group in groups)
    assert sleeper.wait(10) == -9


@pytest.fixture
def unified() -> Generator[Path]:
    """Our directory in the v2 tree, with or without controllers."""
    tops = [tree.top for tree in cgroups.trees() if tree.version == 2 and os.access(tree.top, os.W_OK)]
    if not tops:
        pytest.skip("no v2 tree is ours to write here")
    parent = tops[0] / cgroups.PARENT
    was_there = parent.exists()
    parent.mkdir(exist_ok=True)
    yield parent
    if not was_there:
        parent.rmdir()


def test_a_dead_launchers_home_is_collected_with_the_groups_in_it(unified: Path, sleeper: subprocess.Popen[bytes]) -> None:
    home = unified / "launcher-1-1-0123456789ab"  # process 1 began at another time
    group = home / "namespace-1-1-ba9876543210"
    for place in (home, home / "guests", group):
        place.mkdir()
    try:
        (group / "cgroup.procs").write_text(str(sleeper.pid))
        assert {home.name, group.name} <= set(cgroups.collect())
        assert sleeper.wait(10) == -9
        assert not home.exists()
    finally:
        cgroups.leave(home)


def test_a_launchers_home_goes_with_it(unified: Path, tmp_path: Path) -> None:
    """It is itself in it, so it is removed by us when it has ended."""
    (tmp_path / "tmp").mkdir()

    async def live() -> list[str]:
        launcher = Launcher()
        home = unified / launcher.home
        asked = Create(lowers=(str(tmp_path),), hostname="h", cgroups=(Cgroup(str(home / launcher.name()), (), ()),))
        ours, theirs = pair()
        try:
            with theirs:
                place = await launcher.create(asked, theirs.fileno(), None)
            await place.ready
            seen = sorted(path.name.partition("-")[0] for path in home.iterdir() if path.is_dir())
        finally:
            ours.close()
            await launcher.end()
        assert not home.exists()
        return seen

    assert asyncio.run(live()) == ["guests", "namespace"]
