"""A container's configuration from a spec, and what its labels and name say: pure data both ways."""

import hashlib
import re
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from excise.spec import Limits, Mount, Spec
from excise.substrate import Listed

OWNED = "excise"
REQUEST = "excise.request"
LEASE = "excise.lease"
LABELS = "excise.labels"
"""What the caller said, in one: a container also has every label of its image, and a snapshot's has those of its sandbox."""
SANDBOX = "excise.sandbox"
"""The sandbox's id, if the container is not its first."""
SNAPSHOT = "excise.snapshot"
"""Of an image: which snapshot it is."""
SNAPSHOT_TERMS = "excise.snapshot.terms"
"""Of the same image: what another client must know to make a sandbox of it."""
_LIFE = re.compile(r"\.life-[0-9a-f]+$")
_RENEWED = re.compile(r"\.until-(\d+(?:\.\d+)?)$")
_NANOSECONDS = 10**9
_ALL_MEMORY = 1 << 62
"""More than any machine has."""

# PID 1 reaps orphans by `wait`, and cannot be killed from inside: `killall sleep`, or `kill -9 -1` by root, ends the sleep
# and it begins another. With Docker's own init that would be the end of the sandbox. The variable says whose the sleep is.
# A number, because not every sleep knows "infinity".
_PID_1 = "while :; do EXCISE_ACTION=sandbox sleep 2147483647 & wait; done"


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """An image the daemon holds, and what of it the daemon does not know."""

    reference: str
    env: Mapping[str, str] = {}
    workdir: str | None = None
    user: str | None = None
    binds: tuple[Mount, ...] = ()


def name(request_id: str) -> str:
    """The container's name: the daemon lets only one have it, which is what makes create idempotent."""
    if re.fullmatch(r"[a-zA-Z0-9_-]{1,100}", request_id):
        return f"excise-{request_id}"
    return f"excise-{hashlib.sha256(request_id.encode()).hexdigest()}"


def renewed_name(current: str, expires_s: float) -> str:
    """Labels cannot change and names can: a renewed lease's end is in the name, where every client of the daemon sees it."""
    return f"{_RENEWED.sub('', current.removeprefix('/'))}.until-{expires_s:.3f}"


def config(
    spec: Spec, image: Prepared, *, labels: Mapping[str, str], lease_s: float, request_id: str, runtime: str | None
) -> dict[str, Any]:
    """What create sends. No variable of the spec's is in it: anyone who may talk to the daemon can read a container's."""
    made: dict[str, Any] = {
        "Image": image.reference,
        "Entrypoint": ["sh", "-c", _PID_1],
        "Cmd": [],
        "Env": [f"{key}={value}" for key, value in image.env.items()],
        "Labels": {
            OWNED: "1",
            REQUEST: request_id,
            LEASE: f"{time.time() + lease_s:.3f}",
            LABELS: msgspec.json.encode(labels).decode(),
            SANDBOX: "",
            SNAPSHOT: "",
        },
        "HostConfig": {
            "NetworkMode": "bridge" if spec.network == "open" else "none",
            "Mounts": [_mount(mount) for mount in (*image.binds, *spec.mounts)],
            "LogConfig": {"Type": "none"},
            **_limits(spec.limits),
        },
    }
    workdir, user = spec.workdir or image.workdir, spec.user or image.user
    if workdir:
        made["WorkingDir"] = workdir
    if user:
        made["User"] = user
    if runtime:
        made["HostConfig"]["Runtime"] = runtime
    return made


def with_guest(config: Mapping[str, Any], path: str, program: Path | None) -> dict[str, Any]:
    """`config` with the guest, at `path`, as PID 1. Its stdin ends with the connection of its client, and so does all.

    It is root, so that it can become whoever an action runs as. `program`: the file of this machine to show there.
    """
    host: dict[str, Any] = config["HostConfig"]
    shown = () if program is None else (_mount(Mount(str(program), path)),)
    return {
        **config,
        "Entrypoint": [path],
        "User": "0:0",
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "HostConfig": {**host, "Mounts": [*host["Mounts"], *shown], "AutoRemove": True},
    }


def _mount(mount: Mount) -> dict[str, Any]:
    return {"Type": "bind", "Source": mount.source, "Target": mount.target, "ReadOnly": mount.read_only}


def _limits(limits: Limits) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if limits.memory_bytes is not None:
        # Swap counts: with more than this, a sandbox over its memory would swap instead of ending.
        made |= {"Memory": limits.memory_bytes, "MemorySwap": limits.memory_bytes}
    if limits.cpus is not None:
        made["NanoCpus"] = int(limits.cpus * _NANOSECONDS)
    if limits.pids is not None:
        made["PidsLimit"] = limits.pids
    return made


def changed(before: Limits, after: Limits, host_cpus: int) -> dict[str, Any]:
    """What makes a running container's limits `after`. The daemon takes 0 for "as it was": no limit is the largest there is."""
    made: dict[str, Any] = {}
    if before.memory_bytes != after.memory_bytes:
        made |= _limits(Limits(memory_bytes=after.memory_bytes if after.memory_bytes is not None else _ALL_MEMORY))
    if before.cpus != after.cpus:
        made |= _limits(Limits(cpus=after.cpus if after.cpus is not None else host_cpus))
    if before.pids != after.pids:
        made["PidsLimit"] = -1 if after.pids is None else after.pids
    return made


_STREAMS = ("OpenStdin", "StdinOnce", "AttachStdin", "AttachStdout", "AttachStderr")
_SAME = ("Entrypoint", "Cmd", "Env", "WorkingDir", "User", "Hostname", *_STREAMS)
_SAME_OUTSIDE = ("NetworkMode", "Mounts", "LogConfig", "Memory", "MemorySwap", "NanoCpus", "PidsLimit", "Runtime", "AutoRemove")


def again(inspected: Mapping[str, Any], image: str, sandbox: str) -> tuple[str, dict[str, Any]]:
    """A name and a configuration for the next container of `sandbox`: as the one that was inspected, on another image."""
    config, host = inspected["Config"], inspected["HostConfig"]
    current: str = inspected["Name"].removeprefix("/")
    renewed = _RENEWED.search(current)
    labels = {**config["Labels"], SANDBOX: sandbox, SNAPSHOT: ""}
    if renewed:
        labels[LEASE] = renewed[1]
    made = {key: config[key] for key in _SAME if key in config}
    outside = {key: host[key] for key in _SAME_OUTSIDE if host.get(key) is not None}
    name = _LIFE.sub("", _RENEWED.sub("", current))
    return f"{name}.life-{uuid.uuid4().hex[:12]}", {**made, "Image": image, "Labels": labels, "HostConfig": outside}


def mount_points(inspected: Mapping[str, Any]) -> tuple[str, ...]:
    """Where something of the host's is shown inside."""
    return tuple(mount["Destination"] for mount in inspected.get("Mounts") or ())


def spec_of(inspected: Mapping[str, Any]) -> Spec:
    """What a container shows of the spec it was made from: neither variables nor secrets, boot commands or probes."""
    host: Mapping[str, Any] = inspected["HostConfig"]
    memory, pids, cpus = (host.get(key) or 0 for key in ("Memory", "PidsLimit", "NanoCpus"))
    return Spec(
        image=inspected["Config"]["Image"],
        network="open" if host.get("NetworkMode") == "bridge" else None,
        mounts=tuple(Mount(m["Source"], m["Target"], m.get("ReadOnly", False)) for m in host.get("Mounts") or ()),
        limits=Limits(
            memory_bytes=memory if 0 < memory < _ALL_MEMORY else None,
            cpus=cpus / _NANOSECONDS if cpus else None,
            pids=pids if pids > 0 else None,
        ),
    )


def sandbox_of(summary: Mapping[str, Any]) -> str:
    """The id of the sandbox that a container, as the daemon lists it, is behind of."""
    labels: Mapping[str, str] = summary.get("Labels") or {}
    return labels.get(SANDBOX) or summary["Id"]


def listed(summary: Mapping[str, Any]) -> Listed:
    """A container, or a snapshot's image, as the daemon lists it."""
    now_s = time.time()
    labels: Mapping[str, str] = summary.get("Labels") or {}
    names: list[str] = summary.get("Names") or []
    renewed = next((found[1] for text in names if (found := _RENEWED.search(text))), None)
    expires = renewed or labels.get(LEASE)
    return Listed(
        id=sandbox_of(summary),
        labels=msgspec.json.decode(labels.get(LABELS) or "{}", type=dict[str, str]),
        age_s=max(0.0, now_s - float(summary["Created"])),
        lease_left_s=float(expires) - now_s if expires else None,
    )
