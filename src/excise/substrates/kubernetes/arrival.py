"""How the guest comes into a pod: by an image of one file, whose container copies it to a volume, or over a first exec."""

import hashlib
import io
import json
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from excise.guest.programs import program

Way = Literal["init", "exec"]
PLACE = "/.excise"
PROGRAM = f"{PLACE}/guest"
LINK = f"{PLACE}/link"
IMAGE = "excise/guest"
PORT = 8701
SECRET = "EXCISE_LINK_SECRET"  # noqa: S105 - the variable's name
_GO = f"{PLACE}/go"
_VOLUME = "excise-guest"
_INSIDE = "excise-guest"
_DIGITS = 12
# Both sides may come first, so both make the FIFO. The shell waits in the kernel, and becomes the guest.
_WAIT = f'mkfifo {_GO} 2>/dev/null; read -r word < {_GO}; exec {PROGRAM} "$@"'
# `head` takes no more than the program, if no more was sent: nothing is, until the guest has told where it is.
_FETCH = (
    f"head -c $1 > {PROGRAM}.part && chmod 755 {PROGRAM}.part && mv {PROGRAM}.part {PROGRAM} && "
    f"{{ mkfifo {_GO} 2>/dev/null; echo go > {_GO}; }} && exec {PROGRAM} -g {LINK}"
)
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


def reference(path: Path, image: str = IMAGE) -> str:
    """The name of the image that holds this very program: another program has another name, so none is ever stale."""
    return f"{image}:{hashlib.sha256(path.read_bytes()).hexdigest()[:_DIGITS]}"


def give() -> tuple[str, ...]:
    """The exec whose stdin and stdout become the link of the guest that is there."""
    return (PROGRAM, "-g", LINK)


def fetch(path: Path) -> tuple[str, ...]:
    """The same, which first takes the program from its stdin."""
    return ("/bin/sh", "-c", _FETCH, "sh", str(path.stat().st_size))


def with_guest(pod: Mapping[str, Any], *, way: Way, image: str, pull_policy: str | None, secret: str | None) -> dict[str, Any]:
    """`pod` with the guest as PID 1 of its only container. `secret`: it listens for who knows it, else it waits for an exec."""
    spec: Mapping[str, Any] = pod["spec"]
    container: Mapping[str, Any] = spec["containers"][0]
    waits = ["-w", LINK] if secret is None else ["-l", str(PORT)]
    shown = {"name": _VOLUME, "mountPath": PLACE}
    made = {
        **container,
        "command": ["/bin/sh", "-c", _WAIT, "sh"] if way == "exec" else [PROGRAM],
        "args": waits,
        "volumeMounts": [*container.get("volumeMounts", ()), shown],
    }
    if secret is not None:
        made["env"] = [*container.get("env", ()), {"name": SECRET, "value": secret}]
    changed: dict[str, Any] = {
        **spec,
        "containers": [made],
        "volumes": [*spec.get("volumes", ()), {"name": _VOLUME, "emptyDir": {}}],
    }
    if way == "init":
        changed["initContainers"] = [*spec.get("initContainers", ()), _copier(container, image, shown, pull_policy)]
    return {**pod, "spec": changed}


def _copier(container: Mapping[str, Any], image: str, shown: Mapping[str, Any], pull_policy: str | None) -> dict[str, Any]:
    """It runs before the sandbox does, with the same limits: together they cost the quota nothing more."""
    made: dict[str, Any] = {
        "name": "guest",
        "image": image,
        "command": [f"/{_INSIDE}", "-c", PROGRAM],
        "volumeMounts": [shown],
        **{key: container[key] for key in ("resources", "securityContext") if key in container},
    }
    if pull_policy:
        made["imagePullPolicy"] = pull_policy
    return made


def image_tar(path: Path, machine: str) -> bytes:
    """The one-file image as an archive that `ctr images import`, `docker load` and `skopeo copy oci-archive:` take.

    The same program gives the same bytes.
    """
    layer = _tar({_INSIDE: path.read_bytes()}, mode=0o755)
    config = _json(
        {
            "architecture": _MACHINES.get(machine, machine),
            "os": "linux",
            "config": {"Entrypoint": [f"/{_INSIDE}"]},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    )
    oci = "application/vnd.oci.image"
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{oci}.manifest.v1+json",
            "config": {"mediaType": f"{oci}.config.v1+json", "digest": _digest(config), "size": len(config)},
            "layers": [{"mediaType": f"{oci}.layer.v1.tar", "digest": _digest(layer), "size": len(layer)}],
        }
    )
    name = reference(path)
    names = {"io.containerd.image.name": f"docker.io/{name}", "org.opencontainers.image.ref.name": name.rpartition(":")[2]}
    entry = {"mediaType": f"{oci}.manifest.v1+json", "digest": _digest(manifest), "size": len(manifest), "annotations": names}
    blob = {_digest(one): f"blobs/sha256/{_digest(one).removeprefix('sha256:')}" for one in (layer, config, manifest)}
    docker = [{"Config": blob[_digest(config)], "RepoTags": [name], "Layers": [blob[_digest(layer)]]}]
    return _tar(
        {
            "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
            "index.json": _json({"schemaVersion": 2, "mediaType": f"{oci}.index.v1+json", "manifests": [entry]}),
            "manifest.json": _json(docker),
            **{blob[_digest(one)]: one for one in (layer, config, manifest)},
        },
        mode=0o644,
    )


def _tar(files: Mapping[str, bytes], mode: int) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.mode, member.size = mode, len(data)
            archive.addfile(member, io.BytesIO(data))
    return stream.getvalue()


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def main(arguments: list[str]) -> None:
    """`python -m excise.substrates.kubernetes.arrival x86_64 > guest.tar`: the image, to be pushed or imported."""
    machine = arguments[0] if arguments else "x86_64"
    path = program("excise-guest", machine)
    sys.stderr.write(f"{reference(path)}\n")
    sys.stdout.buffer.write(image_tar(path, machine))


if __name__ == "__main__":
    main(sys.argv[1:])
