"""Removing the cluster: what it started, mounted, and changed on this machine. What was built stays in the cache."""

import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from cluster import daemons, docker, groups, kernel, network
from cluster.places import Places

_PARTS = ("kubelet", "kube-scheduler", "kube-controller-manager", "kube-apiserver", "dockerd", "containerd", "etcd")
"""In the order they are stopped: nobody mends what the next step ends."""
_STOP_S = 3.0
_DOCKER_STOP_S = 30.0
"""Docker ends its containers first; the others have nothing to bring to an end, for nothing of theirs is kept."""
_CNI_RESULTS = Path("/var/lib/cni/results")
_SHARED = (_CNI_RESULTS, _CNI_RESULTS.parent, Path("/run/containerd/s"), Path("/run/containerd/fifo"), Path("/run/containerd"))
"""Directories that are at fixed places, whoever's containerd it is: they go if they are empty."""


def down(places: Places) -> None:
    """All of it, however much there is; twice does no harm."""
    sandboxes, shims = _sandboxes(places), _shims(places)
    for name in _PARTS:
        daemons.stop(name, places, _DOCKER_STOP_S if name == "dockerd" else _STOP_S)
    groups.end()
    for _ in range(2):  # a mount that was mounted over shows when that is gone
        for mount in reversed(mounts(places, Path("/proc/self/mountinfo").read_text())):
            subprocess.run(["umount", mount], check=True)
    network.remove()
    docker.remove(places)
    for sandbox in sandboxes:
        for result in _CNI_RESULTS.glob(f"*-{sandbox}-*"):
            result.unlink()
    for shim in shims:
        shim.unlink(missing_ok=True)
    for directory in _SHARED:
        with suppress(OSError):
            directory.rmdir()
    kernel.restore(places.run / "kernel.json")
    shutil.rmtree(places.data, ignore_errors=True)
    shutil.rmtree(places.run, ignore_errors=True)


def _sandboxes(places: Places) -> list[str]:
    """The pods' ids, which the network plugins' notes about them are named after."""
    return [path.name for path in (places.data / "containerd/io.containerd.grpc.v1.cri/sandboxes").glob("*")]


def _shims(places: Places) -> list[Path]:
    """The sockets of our containers' shims, which lie where everybody's do; each container's directory names its own."""
    tasks = places.run / "containerd/io.containerd.runtime.v2.task/k8s.io"
    return [Path(path.read_text().removeprefix("unix://")) for path in tasks.glob("*/address")]


def mounts(places: Places, mountinfo: str) -> list[str]:
    """What is mounted in our directories, in the order it was."""
    points = [line.split(" ")[4].encode().decode("unicode_escape") for line in mountinfo.splitlines()]
    return [point for point in points if any(Path(point).is_relative_to(ours) for ours in (places.run, places.data))]
