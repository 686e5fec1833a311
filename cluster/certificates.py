"""One certificate authority, made on the spot, and a certificate for each part: nothing of it leaves this machine."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from cluster.places import ADDRESS, NODE, SERVICE_ADDRESS

_DAYS = "365"


@dataclass(frozen=True)
class Identity:
    """Whom a certificate names: `user` and `group` are what RBAC sees, `hosts` what a client checks."""

    name: str
    user: str
    group: str | None = None
    hosts: tuple[str, ...] = ()


IDENTITIES = (
    Identity("apiserver", "kube-apiserver", hosts=(f"IP:{ADDRESS}", f"IP:{SERVICE_ADDRESS}", "DNS:kubernetes.default.svc")),
    Identity("apiserver-to-kubelet", "kube-apiserver", group="system:masters"),
    Identity("apiserver-to-etcd", "kube-apiserver"),
    Identity("etcd", "etcd", hosts=("IP:127.0.0.1",)),
    Identity("kubelet-serving", f"system:node:{NODE}", group="system:nodes", hosts=(f"IP:{ADDRESS}", f"DNS:{NODE}")),
    Identity("kubelet", f"system:node:{NODE}", group="system:nodes"),
    Identity("controller-manager", "system:kube-controller-manager"),
    Identity("scheduler", "system:kube-scheduler"),
    Identity("admin", "excise-admin", group="system:masters"),
)


def make(directory: Path) -> None:
    """All of them into `directory`, which only its owner may enter; those that are there stay."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (directory / "complete").exists():
        return
    _key(directory / "ca.key")
    _openssl(
        *("req", "-x509", "-new", "-key", str(directory / "ca.key"), "-days", _DAYS, "-subj", "/CN=excise-cluster"),
        *("-addext", "keyUsage=critical,keyCertSign,cRLSign", "-out", str(directory / "ca.crt")),
    )
    _key(directory / "service-accounts.key")
    _openssl("pkey", "-in", str(directory / "service-accounts.key"), "-pubout", "-out", str(directory / "service-accounts.pub"))
    for identity in IDENTITIES:
        _issue(directory, identity)
    (directory / "complete").touch()


def _issue(directory: Path, identity: Identity) -> None:
    key, request, extensions = (directory / f"{identity.name}{ending}" for ending in (".key", ".csr", ".ext"))
    _key(key)
    subject = (f"/O={identity.group}" if identity.group else "") + f"/CN={identity.user}"
    _openssl("req", "-new", "-key", str(key), "-subj", subject, "-out", str(request))
    lines = ["keyUsage=critical,digitalSignature", "extendedKeyUsage=clientAuth,serverAuth", "basicConstraints=CA:FALSE"]
    if identity.hosts:
        lines.append(f"subjectAltName={','.join(identity.hosts)}")
    extensions.write_text("\n".join(lines) + "\n")
    _openssl(
        *("x509", "-req", "-in", str(request), "-CA", str(directory / "ca.crt"), "-CAkey", str(directory / "ca.key")),
        *("-CAcreateserial", "-days", _DAYS, "-extfile", str(extensions), "-out", str(directory / f"{identity.name}.crt")),
    )
    request.unlink()
    extensions.unlink()


def _key(path: Path) -> None:
    _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(path))
    path.chmod(0o600)


def _openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)
