"""What the cluster of `make substrates` is made of, as far as that shows without one."""

import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Generator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cluster import api, archive, binaries, certificates, daemons, docker, parts, settings
from cluster.down import mounts
from cluster.errors import ClusterError
from cluster.parts import Part
from cluster.places import Places, places
from cluster.records import Record


@pytest.fixture
def here(tmp_path: Path) -> Places:
    return Places(run=tmp_path / "run", data=tmp_path / "data")


@pytest.fixture
def sleeper() -> Generator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def test_a_process_is_known_by_its_pid_and_when_it_started(sleeper: "subprocess.Popen[bytes]", tmp_path: Path) -> None:
    Record.of(sleeper.pid, "settings").write(tmp_path / "part.json")
    record = Record.read(tmp_path / "part.json")
    assert record is not None
    assert record.runs()
    record.stop(5.0)
    assert sleeper.wait(5) == -15
    assert not record.runs()


@pytest.mark.parametrize("other", [{"started_ticks": 1}, {"boot": "of another time"}])
def test_a_process_that_took_the_pid_is_left_alone(sleeper: "subprocess.Popen[bytes]", other: dict[str, object]) -> None:
    ours = Record.of(sleeper.pid, "settings")
    theirs = Record(**{**vars(ours), **other})  # pyright: ignore[reportArgumentType]
    assert not theirs.runs()
    theirs.stop(0.1)
    assert sleeper.poll() is None


def test_one_that_does_not_end_when_told_is_killed() -> None:
    script = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            Record.of(process.pid, "settings").stop(0.1)
            assert process.wait(5) == -9
        finally:
            process.kill()


def test_a_zombie_does_not_run() -> None:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(ProcessLookupError):
            Record.of(process.pid, "settings")


@pytest.mark.parametrize(
    "text", ["", '{"pid": 1', '{"pid": 1}', '{"pid": 1, "started_ticks": 2, "boot": "", "settings": "", "more": 1}']
)
def test_a_record_that_cannot_be_understood_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "part.json").write_text(text)
    assert Record.read(tmp_path / "part.json") is None
    assert Record.read(tmp_path / "absent.json") is None


def test_a_part_whose_settings_changed_is_another(tmp_path: Path) -> None:
    read = tmp_path / "settings"
    read.write_text("one")
    first = daemons.settings_digest(Part("part", ("program",), reads=(read,)))
    assert first == daemons.settings_digest(Part("part", ("program",), reads=(read,)))
    assert first != daemons.settings_digest(Part("part", ("program", "--more"), reads=(read,)))
    read.write_text("two")
    assert first != daemons.settings_digest(Part("part", ("program",), reads=(read,)))


def test_every_staging_module_is_of_the_release() -> None:
    """A published k8s.io/kubernetes names them v0.0.0: one that is missing here, or of another release, makes a mixture."""
    text = (binaries.MODULE / "go.mod").read_text()
    number = binaries.version()
    assert re.fullmatch(r"v1\.34\.\d+", number), "1.35 drops control groups of version 1"
    replaced = re.findall(r"^\t(k8s\.io/\S+) => (\S+) (v\S+)$", text, re.MULTILINE)
    assert len(replaced) > 25
    assert {(name == by, version) for name, by, version in replaced} == {(True, number.replace("v1.", "v0.", 1))}


def test_a_build_that_was_not_finished_is_no_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One program is missing and there is no Go tool: it says so, instead of starting half a cluster."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    directory = tmp_path / "excise/cluster" / binaries._key()
    directory.mkdir(parents=True)
    for name in binaries.PROGRAMS:
        (directory / name).touch(mode=0o755)
    assert binaries.programs() == directory
    (directory / "kubelet").unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match="no Go tool"):
        binaries.programs()
    assert [path.name for path in directory.parent.iterdir()] == [directory.name]


def test_a_go_tool_that_is_too_old_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "go").write_text("#!/bin/sh\necho go version go1.19.8 linux/amd64\n")
    (tmp_path / "go").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(ClusterError, match=r"too old \(go version go1\.19\.8"):
        binaries.programs()


def test_keys_and_kubeconfigs_are_their_owners_alone(here: Places) -> None:
    certificates.make(here.certificates)
    settings.write(here)
    secret = [here.kubeconfig, *here.certificates.glob("*.key"), *here.settings.glob("*.kubeconfig")]
    assert len(secret) > 10
    assert {path.stat().st_mode & 0o077 for path in secret} == {0}
    assert here.certificates.stat().st_mode & 0o077 == 0
    verified = subprocess.run(
        ["openssl", "verify", "-CAfile", here.certificates / "ca.crt", *here.certificates.glob("[!c]*.crt")],
        capture_output=True,
        check=False,
    )
    assert verified.returncode == 0
    before = (here.certificates / "ca.crt").read_bytes()
    certificates.make(here.certificates)
    assert (here.certificates / "ca.crt").read_bytes() == before, "a cluster that is mended keeps its keys"


def test_nobody_is_anonymous_and_everyone_needs_a_role(here: Places) -> None:
    server = parts.apiserver(here, Path("programs")).command
    assert {"--anonymous-auth=false", "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"} <= set(
        server
    )
    assert settings.kubelet(here)["authentication"]["anonymous"] == {"enabled": False}
    assert settings.kubelet(here)["authorization"] == {"mode": "Webhook"}
    assert "--client-cert-auth" in parts.etcd(here, Path("programs")).command


def test_containerd_shares_nothing_with_another(here: Places) -> None:
    read = tomllib.loads(settings.containerd(here))
    ours = [read["root"], read["state"], read["grpc"]["address"]]
    assert all(Path(place).is_relative_to(here.run) or Path(place).is_relative_to(here.data) for place in ours)
    plugin = read["plugins"]["io.containerd.grpc.v1.cri"]
    assert plugin["netns_mounts_under_state_dir"]
    assert plugin["registry"]["config_path"] == str(here.registries)


def test_where_it_is_can_be_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EXCISE_SUBSTRATES", raising=False)
    assert places().kubeconfig == Path("/run/excise-substrates/kubeconfig")
    monkeypatch.setenv("EXCISE_SUBSTRATES", str(tmp_path))
    assert places() == Places(run=tmp_path, data=tmp_path / "data")


def test_only_mounts_in_our_directories_are_ours() -> None:
    info = "\n".join(
        f"1 2 0:3 / {point} rw - tmpfs tmpfs rw"
        for point in (
            "/",
            "/run",
            "/run/excise-substrates-of-others",
            "/run/excise-substrates/a\\040b",
            "/var/lib/excise-substrates/x",
        )
    )
    ours = Places(run=Path("/run/excise-substrates"), data=Path("/var/lib/excise-substrates"))
    assert mounts(ours, info) == ["/run/excise-substrates/a b", "/var/lib/excise-substrates/x"]


def test_of_the_rules_only_dockers_are_removed() -> None:
    rules = """\
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [1:2]
:OUTPUT ACCEPT [0:0]
:DOCKER - [0:0]
:DOCKER-USER - [0:0]
:MINE - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -i docker0 -o docker0 -j ACCEPT
-A FORWARD -i eth0 -j MINE
-A DOCKER-USER -j RETURN
-A MINE -j ACCEPT
COMMIT"""
    assert (
        docker.without_docker("filter", rules.splitlines(), "ACCEPT")
        == """\
*filter
:FORWARD ACCEPT [0:0]
-D FORWARD -j DOCKER-USER
-D FORWARD -i docker0 -o docker0 -j ACCEPT
-F DOCKER
-F DOCKER-USER
-X DOCKER
-X DOCKER-USER
COMMIT
"""
    )


def test_a_kubelet_that_was_started_anew_must_say_itself_that_it_is_ready() -> None:
    condition = {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T10:00:00Z"}
    node = {"status": {"conditions": [{"type": "DiskPressure", "status": "False"}, condition]}}
    assert api.node_is_ready(node)
    assert api.node_is_ready(node, since=datetime(2026, 1, 1, 10, tzinfo=UTC))
    assert not api.node_is_ready(node, since=datetime(2026, 1, 1, 10, 0, 1, tzinfo=UTC))
    condition["status"] = "False"
    assert not api.node_is_ready(node)
    assert not api.node_is_ready({})


def test_an_image_of_one_program(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF")
    layer = tmp_path / "layer.tar"
    layer.write_bytes(archive.layer_of(program, "/excise-guest"))
    packed = io.BytesIO()
    archive.write(packed, layer, ["excise/guest:1"], "x86_64", {"Entrypoint": ["/excise-guest"]})
    packed.seek(0)
    with tarfile.open(fileobj=packed) as tar:
        held = {entry.name: tar.extractfile(entry).read() for entry in tar if entry.isfile()}  # pyright: ignore[reportOptionalMemberAccess]
    (manifest,) = json.loads(held["manifest.json"])
    config = json.loads(held[manifest["Config"]])
    assert (manifest["RepoTags"], config["architecture"]) == (["excise/guest:1"], "amd64")
    with tarfile.open(fileobj=io.BytesIO(held[manifest["Layers"][0]])) as tar:
        (entry,) = tar.getmembers()
    assert (entry.name, entry.mode, entry.uid, entry.mtime) == ("excise-guest", 0o755, 0, 0)
