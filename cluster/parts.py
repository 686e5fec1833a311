"""The parts of the cluster: each one's command line, and the files it reads, in the order they are started."""

from dataclasses import dataclass
from pathlib import Path

from cluster.places import ADDRESS, API_PORT, ETCD_PEER_PORT, ETCD_PORT, NODE, SERVICE_NETWORK, Places

NAMES = ("etcd", "containerd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
"""All that must run; dockerd only where no other answers."""


@dataclass(frozen=True)
class Part:
    """A daemon. `tells` is whether it says when it is ready, as systemd has daemons do; `reads` are its settings."""

    name: str
    command: tuple[str, ...]
    tells: bool = False
    reads: tuple[Path, ...] = ()


def etcd(places: Places, programs: Path) -> Part:
    """The store; only the API server's certificate opens it."""
    certificates = places.certificates
    client, peer = f"https://127.0.0.1:{ETCD_PORT}", f"http://127.0.0.1:{ETCD_PEER_PORT}"
    return Part(
        "etcd",
        (
            f"{programs}/etcd",
            "--name=excise",
            f"--data-dir={places.data}/etcd",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=excise={peer}",
            "--client-cert-auth",
            f"--trusted-ca-file={certificates}/ca.crt",
            f"--cert-file={certificates}/etcd.crt",
            f"--key-file={certificates}/etcd.key",
            "--log-level=warn",
        ),
        tells=True,
        reads=(certificates / "etcd.crt",),
    )


def containerd(places: Places) -> Part:
    settings = places.settings / "containerd.toml"
    return Part("containerd", ("containerd", "--config", str(settings)), tells=True, reads=(settings,))


def apiserver(places: Places, programs: Path) -> Part:
    """Who asks must have a certificate or a token, and a role: nobody is anonymous."""
    certificates = places.certificates
    return Part(
        "kube-apiserver",
        (
            f"{programs}/kube-apiserver",
            f"--bind-address={ADDRESS}",
            f"--advertise-address={ADDRESS}",
            f"--secure-port={API_PORT}",
            f"--service-cluster-ip-range={SERVICE_NETWORK}",
            f"--etcd-servers=https://127.0.0.1:{ETCD_PORT}",
            f"--etcd-cafile={certificates}/ca.crt",
            f"--etcd-certfile={certificates}/apiserver-to-etcd.crt",
            f"--etcd-keyfile={certificates}/apiserver-to-etcd.key",
            f"--tls-cert-file={certificates}/apiserver.crt",
            f"--tls-private-key-file={certificates}/apiserver.key",
            f"--client-ca-file={certificates}/ca.crt",
            f"--kubelet-certificate-authority={certificates}/ca.crt",
            f"--kubelet-client-certificate={certificates}/apiserver-to-kubelet.crt",
            f"--kubelet-client-key={certificates}/apiserver-to-kubelet.key",
            "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={certificates}/service-accounts.pub",
            f"--service-account-signing-key-file={certificates}/service-accounts.key",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--anonymous-auth=false",
            "--allow-privileged=true",
            "--endpoint-reconciler-type=none",
            "--profiling=false",
        ),
        tells=True,
        reads=(certificates / "apiserver.crt",),
    )


def controller_manager(places: Places, programs: Path) -> Part:
    settings = places.settings / "controller-manager.kubeconfig"
    return Part(
        "kube-controller-manager",
        (
            f"{programs}/kube-controller-manager",
            f"--kubeconfig={settings}",
            f"--root-ca-file={places.certificates}/ca.crt",
            f"--service-account-private-key-file={places.certificates}/service-accounts.key",
            "--use-service-account-credentials",
            "--leader-elect=false",
            "--secure-port=0",
        ),
        reads=(settings,),
    )


def scheduler(places: Places, programs: Path) -> Part:
    settings = places.settings / "scheduler.kubeconfig"
    return Part(
        "kube-scheduler",
        (f"{programs}/kube-scheduler", f"--kubeconfig={settings}", "--leader-elect=false", "--secure-port=0"),
        reads=(settings,),
    )


def kubelet(places: Places, programs: Path) -> Part:
    settings = places.settings / "kubelet.json"
    return Part(
        "kubelet",
        (
            f"{programs}/kubelet",
            f"--config={settings}",
            f"--kubeconfig={places.settings}/kubelet.kubeconfig",
            f"--root-dir={places.data}/kubelet",
            f"--hostname-override={NODE}",
            f"--node-ip={ADDRESS}",
        ),
        tells=True,
        reads=(settings, places.settings / "kubelet.kubeconfig"),
    )
