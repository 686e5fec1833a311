"""The Docker daemon: one that answers is left as it is; else one of our own, which goes when the cluster does."""

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from cluster import network
from cluster.errors import ClusterError
from cluster.parts import Part
from cluster.places import Places
from cluster.records import Record

_TABLES = ("filter", "nat")
_BRIDGE = "docker0"
_LEFT_BEHIND = (Path("/run/docker"), Path("/run/docker.sock"))


def answers() -> bool:
    if shutil.which("docker") is None:
        raise ClusterError("no Docker is installed: run 'apt-get install docker.io' and try again")
    return subprocess.run(["docker", "version"], capture_output=True, check=False).returncode == 0


def part(places: Places) -> Part:
    """At the socket where everybody looks for it, its images among our data."""
    if os.environ.get("DOCKER_HOST"):
        raise ClusterError("the Docker daemon that DOCKER_HOST names does not answer: start it, or unset DOCKER_HOST")
    _note(places)
    pid_file = places.run / "docker.pid"
    record = Record.read(places.records / "dockerd.json")
    if record is None or not record.runs():
        # Of a daemon that was killed, and its containerd with it: the next one would take whoever has these pids for them.
        pid_file.unlink(missing_ok=True)
        (places.run / "docker/containerd/containerd.pid").unlink(missing_ok=True)
    return Part(
        "dockerd",
        (
            "dockerd",
            f"--data-root={places.data}/docker",
            f"--exec-root={places.run}/docker",
            f"--pidfile={pid_file}",
        ),
        tells=True,
    )


def _noted(places: Places) -> Path:
    return places.run / "before-docker.json"


def _note(places: Places) -> None:
    """Before our first daemon: whether another left its bridge and rules here, which then stay, and what was forwarded."""
    if not _noted(places).exists():
        rules = _rules("filter")
        policy = next(line.split()[1] for line in rules if line.startswith(":FORWARD ")) if rules else "ACCEPT"
        there = network.is_there(_BRIDGE)
        _noted(places).write_text(json.dumps({"there": there, "forward": policy}))


def remove(places: Places) -> None:
    """What a daemon leaves on the machine when it ends: its bridge, its rules, its sockets; if there were none before ours."""
    if not _noted(places).exists():
        return
    before = json.loads(_noted(places).read_text())
    if before["there"]:
        return
    for table in _TABLES:
        script = without_docker(table, _rules(table), before["forward"])
        subprocess.run(["iptables-restore", "--noflush", "--wait"], input=script, text=True, check=True)
    if network.is_there(_BRIDGE):
        subprocess.run(["ip", "link", "delete", _BRIDGE], check=True)
    for path in _LEFT_BEHIND:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _rules(table: str) -> list[str]:
    return subprocess.run(["iptables-save", "-t", table], capture_output=True, text=True, check=True).stdout.splitlines()


def without_docker(table: str, rules: Sequence[str], forward: str) -> str:
    """What iptables-restore is told, so that of `rules` (what iptables-save says) those of others alone are left."""
    chains = [line[1:].split()[0] for line in rules if line.startswith(":DOCKER")]
    theirs = [line for line in rules if line.startswith("-A ") and (_BRIDGE in line or "DOCKER" in line)]
    deleted = [line.replace("-A ", "-D ", 1) for line in theirs if line.split()[1] not in chains]
    policy = [f":FORWARD {forward} [0:0]"] if table == "filter" else []
    flushed = [f"-F {chain}" for chain in chains]
    return "\n".join([f"*{table}", *policy, *deleted, *flushed, *(f"-X {chain}" for chain in chains), "COMMIT", ""])
