"""Kubernetes' programs, and etcd: built once from the Go modules that kubernetes/go.mod names, and kept by version."""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from cluster.errors import ClusterError
from cluster.places import cache

_OF_KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
PROGRAMS = {**{name: f"k8s.io/kubernetes/cmd/{name}" for name in _OF_KUBERNETES}, "etcd": "go.etcd.io/etcd/server/v3"}
"""Each one's name, and the package it is."""
MODULE = Path(__file__).parent / "kubernetes"
_VERSION_PACKAGES = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
_OLDEST_GO = (1, 21)
"""The first that fetches the Go release which a module asks for, from the module proxy."""


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
    """The directory that holds all of them, built now if it is not there. It gets its name last, so it is never half full."""
    directory = cache() / _key()
    if all(os.access(directory / name, os.X_OK) for name in PROGRAMS):
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(dir=directory.parent, prefix=".building-"))
    try:
        _build(building)
        shutil.rmtree(directory, ignore_errors=True)
        building.chmod(0o755)
        building.rename(directory)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return directory


def _build(out: Path) -> None:
    go = _go()
    number = version()
    print(f"building Kubernetes {number} into {out.parent}: once, 5 to 15 minutes on 2 cores", flush=True)
    for done, (name, package) in enumerate(PROGRAMS.items(), 1):
        began = time.monotonic()
        built = subprocess.run(
            [go, "build", "-trimpath", "-ldflags", _link_flags(number), "-o", str(out / name), package],
            cwd=MODULE,
            env={**os.environ, "GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "auto"},
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if built.returncode:
            raise ClusterError(f"{name} could not be built; the Go tool says: {built.stderr.strip()[-2000:]}")
        print(f"  {done} of {len(PROGRAMS)}: {name} in {time.monotonic() - began:.0f} s", flush=True)


def _link_flags(number: str) -> str:
    """What the release's own build sets, so that /version says which it is; -s -w leave out what only debuggers need."""
    major, minor, _ = number.removeprefix("v").split(".", 2)
    values = {"gitVersion": number, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    return " ".join(
        ["-s", "-w", *(f"-X {package}.{name}={value}" for package in _VERSION_PACKAGES for name, value in values.items())]
    )


def _go() -> str:
    """A Go tool that is new enough to fetch the one the module needs."""
    go = shutil.which("go")
    if go is None:
        raise ClusterError(
            "no Go tool is on PATH: install Go 1.21 or newer (Debian 12's golang is too old; its backports have golang-1.2x) "
            "and try again"
        )
    said = subprocess.run([go, "version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"go(\d+)\.(\d+)", said)
    if found is None or (int(found[1]), int(found[2])) < _OLDEST_GO:
        raise ClusterError(f"{go} is too old ({said.strip()}): put Go 1.21 or newer first on PATH and try again")
    return go
