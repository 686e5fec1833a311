"""The Docker daemon: one that answers is left as it is; else one of our own, which goes when the cluster does."""

import os
import shutil
import subprocess

from cluster.errors import ClusterError
from cluster.parts import Part
from cluster.places import Places


def answers() -> bool:
    if shutil.which("docker") is None:
        raise ClusterError("no Docker is installed: run 'apt-get install docker.io' and try again")
    return subprocess.run(["docker", "version"], capture_output=True, check=False).returncode == 0


def part(places: Places) -> Part:
    """At the socket where everybody looks for it, its images among our data."""
    if os.environ.get("DOCKER_HOST"):
        raise ClusterError("the Docker daemon that DOCKER_HOST names does not answer: start it, or unset DOCKER_HOST")
    return Part(
        "dockerd",
        (
            "dockerd",
            f"--data-root={places.data}/docker",
            f"--exec-root={places.run}/docker",
            f"--pidfile={places.run}/docker.pid",
        ),
        tells=True,
    )
