"""Bringing the cluster up, or mending what is missing of it: every step looks first whether it is done."""

import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from cluster import api, certificates, daemons, docker, groups, images, kernel, network, parts, settings
from cluster.binaries import programs, version
from cluster.errors import ClusterError
from cluster.parts import Part
from cluster.places import NODE, Places

READY_S = 120.0
_NEEDED = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "openssl": "openssl",
    "ip": "iproute2",
    "iptables": "iptables",
    str(settings.CNI_PROGRAMS / "bridge"): "containernetworking-plugins",
}


def up(places: Places) -> None:
    """All of it runs and the node is ready, or a ClusterError says what to do."""
    began = time.monotonic()
    check()
    built = programs()
    _prepare(places)
    began_at = datetime.now(UTC).replace(microsecond=0)
    started = _start(places, built)
    # A kubelet that has just been started says so at once; until then the node is what the last one said of it.
    since = began_at if "kubelet" in started else None
    api.wait(places.certificates, "/api/v1/nodes", NODE, lambda node: api.node_is_ready(node, since), READY_S)
    api.wait(places.certificates, "/api/v1/namespaces/default/serviceaccounts", "default", bool, READY_S)
    daemons.check(parts.NAMES, places)
    took_s = time.monotonic() - began
    if started:
        print(f"Kubernetes {version()}: node ready {took_s:.1f} s after the start")
    else:
        print(f"Kubernetes {version()} is up already")
    print(f"export KUBECONFIG={places.kubeconfig}", flush=True)


def check() -> None:
    """What has to be installed, all of what is missing at once."""
    missing = sorted({package for command, package in _NEEDED.items() if shutil.which(command) is None})
    if missing:
        raise ClusterError(f"some programs are missing: run 'apt-get install {' '.join(missing)}' and try again")


def _prepare(places: Places) -> None:
    places.run.mkdir(mode=0o755, parents=True, exist_ok=True)
    if not places.certificates.exists():
        shutil.rmtree(places.data, ignore_errors=True)  # of a cluster that a reboot ended: its keys are gone
    places.data.mkdir(mode=0o711, parents=True, exist_ok=True)
    _refuse_overlay(places.data)
    kernel.note(places.run / "kernel.json")
    certificates.make(places.certificates)
    settings.write(places)
    groups.make()
    network.make()
    kernel.forward()


def _refuse_overlay(directory: Path) -> None:
    kind = subprocess.run(["stat", "-f", "-c", "%T", str(directory)], capture_output=True, text=True, check=True).stdout.strip()
    if kind == "overlayfs":
        raise ClusterError(
            f"{directory} is on an overlay, where no container can be: set EXCISE_SUBSTRATES to a directory on a disk"
        )


def _start(places: Places, built: Path) -> set[str]:
    """The names of what had to be. What does not wait for each other is started together."""

    def ensure(part: Part) -> str | None:
        return part.name if daemons.ensure(part, places) else None

    with ThreadPoolExecutor() as together:
        engine = together.submit(lambda: None if docker.answers() else ensure(docker.part(places)))
        store = together.submit(ensure, parts.etcd(places, built))
        runtime = together.submit(ensure, parts.containerd(places))
        runtime.result()
        imported = together.submit(_images, places)
        store.result()
        server = ensure(parts.apiserver(places, built))
        rest = [part(places, built) for part in (parts.controller_manager, parts.scheduler, parts.kubelet)]
        names = [server, *together.map(ensure, rest), *(one.result() for one in (engine, store, runtime, imported))]
    return {name for name in names if name is not None}


def _images(places: Places) -> str | None:
    began = time.monotonic()
    imported = images.ensure(places)
    if imported:
        print(f"{'images':<24} imported in {time.monotonic() - began:.1f} s: {' '.join(imported)}", flush=True)
    return "images" if imported else None
