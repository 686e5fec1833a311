"""A spec as a bundle for runsc."""

from pathlib import Path
from typing import Any

import pytest

from excise.errors import SpecError
from excise.spec import Limits, Mount, Spec
from excise.storage.image import Image
from excise.substrates.gvisor import bundle
from excise.substrates.gvisor.bundle import Start
from excise.substrates.gvisor.program import Runsc

IMAGE = Image(name="any", digest="sha256:0", root=Path("/image"), env={"A": "1"}, workdir="/work", binds=(("/usr", "/usr"),))
CURRENT = Runsc(Path("/runsc"), "systrap", "v1", frozenset({"overlay2", "allow-rootfs-tar-annotation"}))
OLD = Runsc(Path("/runsc"), "ptrace", "0.0", frozenset({"overlay"}))


def made(**more: Any) -> dict[str, Any]:
    start = Start(spec=more.pop("spec", Spec()), image=IMAGE, **more)
    return bundle.config(start, "/layer/root", None)


def test_the_image_is_shown_read_only_and_its_root_is_the_layer() -> None:
    config = made()
    assert config["root"]["path"] == "/layer/root"
    shown = next(mount for mount in config["mounts"] if mount["destination"] == "/usr")
    assert (shown["source"], "ro" in shown["options"]) == ("/usr", True)


def test_only_the_guest_holds_more_than_a_container_does() -> None:
    plain, guest = made()["process"], made(guest=Path("/guest"))["process"]
    assert not any("CAP_SYS_ADMIN" in held for held in plain["capabilities"].values())
    assert all("CAP_SYS_ADMIN" in held for held in guest["capabilities"].values())
    assert guest["args"] == [bundle.GUEST, "-u"]
    for config in (plain, guest):
        assert not any("CAP_SYS_PTRACE" in held for held in config["capabilities"].values())


def test_an_ordinary_user_holds_nothing() -> None:
    process = bundle.process(("true",), {"B": "2"}, (1000, 1001))
    assert (process["user"]["uid"], process["user"]["gid"], process["env"]) == (1000, 1001, ["B=2"])
    assert process["capabilities"]["effective"] == ()


def test_a_size_is_for_all_that_can_be_written_to() -> None:
    spec = Spec(limits=Limits(disk_bytes=4096))
    config = made(spec=spec, guest=Path("/guest"))
    assert "-d" in config["process"]["args"]
    sized = [mount["destination"] for mount in config["mounts"] if "size=4096" in mount.get("options", ())]
    assert sized == ["/dev/shm", "/tmp"]
    assert "--overlay2=root:memory,size=4096" in bundle.flags(Start(spec=spec, image=IMAGE), CURRENT, grouped=False)


def test_the_flags_are_those_that_this_runsc_knows() -> None:
    start = Start(spec=Spec(), image=IMAGE)
    assert bundle.flags(start, OLD, grouped=False) == ("--overlay", "--ignore-cgroups")
    assert (CURRENT.sizes, CURRENT.tars, OLD.sizes, OLD.tars) == (True, True, False, False)
    begun = Start(spec=Spec(), image=IMAGE, upper=Path("/upper.tar"))
    assert bundle.flags(begun, CURRENT, grouped=True) == ("--overlay2=root:memory", "--allow-rootfs-tar-annotation")
    assert made(upper=Path("/upper.tar"))["annotations"] == {"dev.gvisor.tar.rootfs.upper": "/upper.tar"}


def test_processes_are_counted_by_the_guest_on_gvisors_own_groups() -> None:
    spec = Spec(limits=Limits(pids=10))
    config = made(spec=spec, guest=Path("/guest"))
    assert config["process"]["args"][-2:] == ["-n", f"/sys/fs/cgroup/{bundle.ID}:12"]
    assert "/sys/fs/cgroup" in [mount["destination"] for mount in config["mounts"]]
    assert "--in-sandbox-cgroup=v2" in bundle.flags(Start(spec=spec, image=IMAGE), CURRENT, grouped=False)


def test_processor_time_is_a_quota_of_the_group() -> None:
    config = bundle.config(Start(spec=Spec(limits=Limits(cpus=1.5)), image=IMAGE), "/layer/root", "/group")
    assert config["linux"]["cgroupsPath"] == "/group"
    assert config["linux"]["resources"]["cpu"] == {"quota": 150_000, "period": 100_000}


@pytest.mark.parametrize("target", ["relative", "/", "/proc/x", "/dev", "/sys/kernel"])
def test_what_cannot_be_mounted_upon(target: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError):
        bundle.require_places(Spec(mounts=(Mount(str(tmp_path), target),)))


def test_what_is_not_there_cannot_be_mounted(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="nothing to mount"):
        bundle.require_places(Spec(mounts=(Mount(str(tmp_path / "absent"), "/data"),)))
    with pytest.raises(SpecError, match="from the root"):
        bundle.require_places(Spec(workdir="here"))
