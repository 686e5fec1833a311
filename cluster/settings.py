"""The files that the parts read: containerd's and the kubelet's settings, the pods' network, and kubeconfigs."""

import base64
import json
from pathlib import Path
from typing import Any

from cluster.places import ADDRESS, API_PORT, BRIDGE, GROUP, KUBELET_PORT, NODE, POD_NETWORK, Places

PAUSE_IMAGE = "excise/pause:1"
CNI_PROGRAMS = Path("/usr/lib/cni")


def write(places: Places) -> None:
    """All of them. Those who run as somebody else may read none: they hold keys."""
    places.settings.mkdir(mode=0o700, parents=True, exist_ok=True)
    places.registries.mkdir(exist_ok=True)
    network = places.settings / "network"
    network.mkdir(exist_ok=True)
    _put(places.settings / "containerd.toml", containerd(places))
    _put(places.settings / "kubelet.json", json.dumps(kubelet(places), indent=2))
    _put(network / "10-excise.conflist", json.dumps(pod_network(places), indent=2))
    for name in ("controller-manager", "scheduler", "kubelet"):
        _put(places.settings / f"{name}.kubeconfig", kubeconfig(places.certificates, name))
    _put(places.kubeconfig, kubeconfig(places.certificates, "admin"))


def _put(path: Path, text: str) -> None:
    """Whole or not at all, and for its owner alone: a kubeconfig is read while it is written again."""
    new = path.with_name(f".{path.name}.new")
    new.touch(mode=0o600)
    new.write_text(text)
    new.rename(path)


def containerd(places: Places) -> str:
    """A daemon of its own beside any other: its directories, its socket, and no plugin that needs what it does not have."""
    criplugin = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""\
version = 2
root = "{places.data}/containerd"
state = "{places.run}/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
                    "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
                    "io.containerd.internal.v1.opt"]

[grpc]
  address = "{places.containerd_socket}"

[{criplugin}]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  netns_mounts_under_state_dir = true

[{criplugin}.cni]
  bin_dir = "{CNI_PROGRAMS}"
  conf_dir = "{places.settings}/network"

[{criplugin}.registry]
  config_path = "{places.registries}"

[{criplugin}.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[{criplugin}.containerd.runtimes.runc.options]
  SystemdCgroup = false
  Root = "{places.run}/runc"
"""


def kubelet(places: Places) -> dict[str, Any]:
    """A node that takes what this machine is: control groups of version 1 or 2, no systemd, swap or none."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": ADDRESS,
        "port": KUBELET_PORT,
        "healthzPort": 0,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(places.certificates / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(places.certificates / "kubelet-serving.crt"),
        "tlsPrivateKeyFile": str(places.certificates / "kubelet-serving.key"),
        "containerRuntimeEndpoint": f"unix://{places.containerd_socket}",
        "podLogsDir": str(places.data / "pod-logs"),
        "volumePluginDir": str(places.data / "volume-plugins"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{GROUP}",
        # Without a group of its own it watches every group of the machine, and slows down those who make many.
        "kubeletCgroups": f"/{GROUP}/kubelet",
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "oomScoreAdj": 0,  # lowering it takes CAP_SYS_RESOURCE, which a container's root does not have
        "resolvConf": "",
        "makeIPTablesUtilChains": False,  # there is no kube-proxy that would need them
        # The disk is shared with all else on this machine: how full it is says nothing about the pods. A pod's own limits hold.
        "evictionHard": {},
        "imageGCHighThresholdPercent": 100,
        "localStorageCapacityIsolation": True,
        "serializeImagePulls": False,  # one slow pull must not stop every other
        "shutdownGracePeriod": "0s",
    }


def pod_network(places: Places) -> dict[str, Any]:
    """Every pod an address on the bridge. What leaves the machine is masked by rules that stand once, not some a pod."""
    return {
        "cniVersion": "0.4.0",
        "name": "excise",
        "plugins": [
            {
                "type": "bridge",
                "bridge": BRIDGE,
                "isGateway": True,
                "ipMasq": False,
                "hairpinMode": True,
                "ipam": {
                    "type": "host-local",
                    "dataDir": str(places.run / "addresses"),
                    "ranges": [[{"subnet": POD_NETWORK, "gateway": ADDRESS}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }
        ],
    }


def kubeconfig(certificates: Path, name: str) -> str:
    """Everything in the one file, as JSON, which is YAML: it can be copied, and no other file has to stay."""

    def data(file: str) -> str:
        return base64.b64encode((certificates / file).read_bytes()).decode()

    cluster = {"server": f"https://{ADDRESS}:{API_PORT}", "certificate-authority-data": data("ca.crt")}
    user = {"client-certificate-data": data(f"{name}.crt"), "client-key-data": data(f"{name}.key")}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "excise", "cluster": cluster}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": "excise", "context": {"cluster": "excise", "user": name, "namespace": "default"}}],
            "current-context": "excise",
        },
        indent=2,
    )


__all__ = ["CNI_PROGRAMS", "NODE", "PAUSE_IMAGE", "containerd", "kubeconfig", "kubelet", "pod_network", "write"]
