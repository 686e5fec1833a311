"""A pod's manifest from a spec, and what its labels and annotations say: pure data both ways."""

import hashlib
import re
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from excise.errors import SpecError
from excise.spec import Limits, Spec
from excise.storage.image import kind
from excise.substrate import Listed
from excise.substrates.kubernetes.options import Options

CONTAINER = "sandbox"
OWNED = "excise.dev/sandbox"
"""A label: which path its actions take."""
GUEST = "guest"
"""The path by our guest; the other is `exec`."""
CLIENT = "excise.dev/client"
NETWORK = "excise.dev/network"
"""A label, by which the NetworkPolicy finds the pods it closes."""
REQUEST = "excise.dev/request"
LEASE = "excise.dev/lease-until"
LABELS = "excise.dev/labels"
SPEC_LIMITS = "excise.dev/limits"
MADE_BY = "excise.dev/made-by"
"""Annotations: what made it, until when it is wanted, what the caller said of it, and whose create it was."""
_OWN_LABEL = "label.excise.dev/"

_ROPE_S = 7 * 86400
"""The kubelet ends a pod after so long, or ten leases, whoever renews it: the last rope, should nobody ever collect."""
# What programs in a container expect of root; not: raw sockets, device nodes, the audit log.
_CAPABILITIES = (
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
)
# PID 1 reaps orphans by `wait`, and cannot be killed from inside: `kill -9 -1` by root ends the sleep, and it begins another.
# The variable says whose the sleep is. A number, because not every sleep knows "infinity".
PID_1 = "while :; do EXCISE_ACTION=sandbox sleep 2147483647 & wait; done"


def name(request_id: str, path: str = "exec") -> str:
    """The pod's name: a namespace lets only one have it, which is what makes create idempotent."""
    prefix = "excise-" if path == "exec" else f"excise-{path}-"
    if re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,44}[a-z0-9])?", request_id):
        return prefix + request_id
    return prefix + hashlib.sha256(request_id.encode()).hexdigest()[:40]


def image(asked: str, options: Options) -> str:
    """The image as a node knows it: a cluster has neither this machine's files nor a file of it."""
    found = options.image if asked == "host" else asked
    if kind(found) in ("tar", "host"):
        raise SpecError(f"image {found!r} is on this machine, and a cluster's nodes are not: push it to a registry they reach")
    return found


def manifest(
    spec: Spec,
    options: Options,
    *,
    labels: Mapping[str, str],
    lease_s: float,
    request_id: str,
    client: str,
    made_by: str,
    path: str = "exec",
) -> dict[str, Any]:
    """What create sends. No variable of the spec's is in it: whoever may read pods can read those."""
    reference = image(spec.image, options)
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": reference,
        "command": ["sh", "-c", PID_1],
        "args": [],
        "resources": _resources(spec.limits, options),
        "securityContext": _security(options),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if spec.workdir:
        container["workingDir"] = spec.workdir
    if (policy := _pull_policy(spec.image, reference, options)) is not None:
        container["imagePullPolicy"] = policy
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name(request_id, path),
            "labels": {
                OWNED: path,
                CLIENT: client,
                NETWORK: "open" if spec.network == "open" else "closed",
                **{_own_label(key, value): "" for key, value in labels.items()},
            },
            "annotations": {
                REQUEST: request_id,
                LEASE: f"{time.time() + lease_s:.3f}",
                LABELS: msgspec.json.encode(labels).decode(),
                SPEC_LIMITS: msgspec.json.encode(spec.limits).decode(),
                MADE_BY: made_by,
            },
        },
        "spec": {
            "containers": [container],
            "restartPolicy": "Never",
            "automountServiceAccountToken": options.service_account is not None,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 0,
            "activeDeadlineSeconds": int(max(10 * lease_s, _ROPE_S)),
            **_placement(options),
        },
    }


def _placement(options: Options) -> dict[str, Any]:
    given: dict[str, Any] = {
        "runtimeClassName": options.runtime_class,
        "nodeSelector": dict(options.node_selector),
        "tolerations": [dict(one) for one in options.tolerations],
        "imagePullSecrets": [{"name": one} for one in options.pull_secrets],
        "serviceAccountName": options.service_account,
    }
    return {key: value for key, value in given.items() if value}


def _pull_policy(asked: str, reference: str, options: Options) -> str | None:
    """excise/base is nobody's in any registry, so that what is there under this name is never fetched unasked."""
    if options.pull_policy is not None:
        return options.pull_policy
    return "Never" if kind(reference) == "built" else None


def _security(options: Options) -> dict[str, Any]:
    made: dict[str, Any] = {
        "allowPrivilegeEscalation": False,
        "privileged": False,
        "seccompProfile": {"type": "RuntimeDefault"},
        "capabilities": {"drop": ["ALL"], "add": list(_CAPABILITIES)},
    }
    if options.security == "restricted":
        made |= {"capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True}
    return made


def _resources(limits: Limits, options: Options) -> dict[str, Any]:
    made: dict[str, str] = {}
    if limits.memory_bytes is not None:
        made["memory"] = str(limits.memory_bytes)
    if limits.cpus is not None:
        made["cpu"] = f"{max(1, round(limits.cpus * 1000))}m"
    if options.ephemeral_storage is not None:
        made["ephemeral-storage"] = options.ephemeral_storage
    return {"limits": made} if made else {}


def _own_label(key: str, value: str) -> str:
    """A caller's labels are any text, and the API's are not: so that they can be asked for, each is there as a digest."""
    return _OWN_LABEL + hashlib.sha256(f"{key}\0{value}".encode()).hexdigest()[:40]


def selector(labels: Mapping[str, str], path: str | None = None) -> str:
    """Our pods that carry all of these labels."""
    return ",".join((OWNED if path is None else f"{OWNED}={path}", *(_own_label(key, value) for key, value in labels.items())))


# ---- what a pod says


def sandbox_id(pod: Mapping[str, Any]) -> str:
    """The name alone may be another sandbox's by now."""
    return f"{pod['metadata']['name']}.{pod['metadata']['uid']}"


def split_id(id: str) -> tuple[str, str]:
    """Name and UID."""
    named, _, uid = id.rpartition(".")
    return named, uid


def listed(pod: Mapping[str, Any]) -> Listed:
    meta: Mapping[str, Any] = pod["metadata"]
    now_s = time.time()
    return Listed(
        id=sandbox_id(pod),
        labels=labels_of(pod),
        age_s=max(0.0, now_s - datetime.fromisoformat(meta["creationTimestamp"]).timestamp()),
        lease_left_s=lease_left_s(pod),
    )


def labels_of(pod: Mapping[str, Any]) -> dict[str, str]:
    return msgspec.json.decode(_annotation(pod, LABELS) or "{}", type=dict[str, str])


def lease_left_s(thing: Mapping[str, Any]) -> float | None:
    until = _annotation(thing, LEASE)
    try:
        return float(until) - time.time()
    except ValueError:
        return None  # somebody else's hand: it is left alone


def spec_of(pod: Mapping[str, Any]) -> Spec:
    """What a pod shows of the spec it was made from: neither variables nor secrets, boot commands or probes."""
    container: Mapping[str, Any] = pod["spec"]["containers"][0]
    return Spec(
        image=container["image"],
        workdir=container.get("workingDir"),
        network="open" if pod["metadata"]["labels"].get(NETWORK) == "open" else None,
        limits=msgspec.json.decode(_annotation(pod, SPEC_LIMITS) or "{}", type=Limits),
    )


def made_by(pod: Mapping[str, Any]) -> str:
    return _annotation(pod, MADE_BY)


def request_of(pod: Mapping[str, Any]) -> str:
    return _annotation(pod, REQUEST)


def path_of(pod: Mapping[str, Any]) -> str:
    labels: Mapping[str, str] = pod["metadata"].get("labels") or {}
    return labels.get(OWNED, "")


def _annotation(thing: Mapping[str, Any], key: str) -> str:
    annotations: Mapping[str, str] = thing["metadata"].get("annotations") or {}
    return annotations.get(key, "")
