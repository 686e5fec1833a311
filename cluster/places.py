"""Where the cluster's files are, and the numbers it uses on this machine."""

import os
from dataclasses import dataclass
from pathlib import Path

NODE = "excise-node"
BRIDGE = "excise-pods"
"""The pods' bridge. Its own address is also the node's and the API server's: so nothing depends on this machine's network."""
BRIDGE_MAC = "02:ec:15:ec:00:01"
ADDRESS = "10.213.0.1"
POD_NETWORK = "10.213.0.0/24"
SERVICE_NETWORK = "10.213.1.0/24"
SERVICE_ADDRESS = "10.213.1.1"
API_PORT = 16443
ETCD_PORT = 12379
ETCD_PEER_PORT = 12380
KUBELET_PORT = 10250
GROUP = "excise-substrates"
"""The control group, in every hierarchy, that all of it runs below."""
_VARIABLE = "EXCISE_SUBSTRATES"


@dataclass(frozen=True)
class Places:
    """`run` holds what a reboot may take: sockets, records of processes, keys. `data` holds what is large."""

    run: Path
    data: Path

    @property
    def kubeconfig(self) -> Path:
        return self.run / "kubeconfig"

    @property
    def certificates(self) -> Path:
        return self.run / "certificates"

    @property
    def settings(self) -> Path:
        return self.run / "settings"

    @property
    def registries(self) -> Path:
        """containerd reads `<host>:<port>/hosts.toml` here at every pull."""
        return self.run / "registries"

    @property
    def records(self) -> Path:
        """One JSON file a running part: its pid, and when it started."""
        return self.run / "parts"

    @property
    def logs(self) -> Path:
        return self.run / "logs"

    @property
    def containerd_socket(self) -> Path:
        return self.run / "containerd.sock"


def places() -> Places:
    """Below EXCISE_SUBSTRATES if that is set; else in /run, with what is large in /var/lib."""
    named = os.environ.get(_VARIABLE)
    if named:
        top = Path(named).resolve()
        return Places(run=top, data=top / "data")
    return Places(run=Path("/run/excise-substrates"), data=Path("/var/lib/excise-substrates"))


def cache() -> Path:
    """Where what was built is kept: it outlives the cluster."""
    caches = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(caches) / "excise" / "cluster"
