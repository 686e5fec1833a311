"""Kubernetes' programs, and etcd: built once from the Go modules that kubernetes/go.mod names, and kept by version."""

import hashlib
import re
import time
from pathlib import Path

from cluster import go
from cluster.places import cache

_OF_KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
PROGRAMS = {**{name: f"k8s.io/kubernetes/cmd/{name}" for name in _OF_KUBERNETES}, "etcd": "go.etcd.io/etcd/server/v3"}
"""Each one's name, and the package it is."""
MODULE = Path(__file__).parent / "kubernetes"
_VERSION_PACKAGES = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")


def version() -> str:
    """Kubernetes' version, as go.mod has it: v1.34.4, say."""
    found = re.search(r"^\tk8s\.io/kubernetes (v\S+)$", (MODULE / "go.mod").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def _key() -> str:
    """The version, and a digest of all the modules that go into it: another etcd is another build."""
    digest = hashlib.sha256((MODULE / "go.mod").read_bytes() + (MODULE / "go.sum").read_bytes()).hexdigest()
    return f"{version()}-{digest[:8]}"


def programs() -> Path:
    """The directory that holds all of them, built now if it is not there."""
    return go.made(cache() / _key(), tuple(PROGRAMS), _build)


def _build(out: Path) -> None:
    go.tool()  # said before anything else is
    number = version()
    print(f"building Kubernetes {number} into {out.parent}: once, 5 to 15 minutes on 2 cores", flush=True)
    for done, (name, package) in enumerate(PROGRAMS.items(), 1):
        began = time.monotonic()
        go.build(MODULE, package, out / name, _link_flags(number))
        print(f"  {done} of {len(PROGRAMS)}: {name} in {time.monotonic() - began:.0f} s", flush=True)


def _link_flags(number: str) -> str:
    """What the release's own build sets, so that /version says which it is; -s -w leave out what only debuggers need."""
    major, minor, _ = number.removeprefix("v").split(".", 2)
    values = {"gitVersion": number, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    return " ".join(
        ["-s", "-w", *(f"-X {package}.{name}={value}" for package in _VERSION_PACKAGES for name, value in values.items())]
    )
