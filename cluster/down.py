"""Removing the cluster: what it started, mounted, and changed on this machine. What was built stays in the cache."""

import shutil
import subprocess
from pathlib import Path

from cluster import daemons, groups, kernel, network
from cluster.places import Places

_PARTS = ("kubelet", "kube-scheduler", "kube-controller-manager", "kube-apiserver", "dockerd", "containerd", "etcd")
"""In the order they are stopped: nobody mends what the next step ends."""
_CNI_RESULTS = Path("/var/lib/cni/results")


def down(places: Places) -> None:
    """All of it, however much there is; twice does no harm."""
    sandboxes = _sandboxes(places)
    for name in _PARTS:
        daemons.stop(name, places)
    groups.end()
    for _ in range(2):  # a mount that was mounted over shows when that is gone
        for mount in reversed(mounts(places, Path("/proc/self/mountinfo").read_text())):
            subprocess.run(["umount", mount], check=True)
    network.remove()
    for sandbox in sandboxes:
        for result in _CNI_RESULTS.glob(f"*-{sandbox}-*"):
            result.unlink()
    kernel.restore(places.run / "kernel.json")
    shutil.rmtree(places.data, ignore_errors=True)
    shutil.rmtree(places.run, ignore_errors=True)


def _sandboxes(places: Places) -> list[str]:
    """The pods' ids, which the network plugins' notes about them are named after."""
    return [path.name for path in (places.data / "containerd/io.containerd.grpc.v1.cri/sandboxes").glob("*")]


def mounts(places: Places, mountinfo: str) -> list[str]:
    """What is mounted in our directories, in the order it was."""
    points = [line.split(" ")[4].encode().decode("unicode_escape") for line in mountinfo.splitlines()]
    return [point for point in points if any(Path(point).is_relative_to(ours) for ours in (places.run, places.data))]
