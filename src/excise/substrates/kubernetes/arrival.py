"""How the guest comes into a pod: by an image of one file, whose container copies it to a volume, or over a first exec."""

import secrets
from collections.abc import Mapping
from typing import Any, Literal

Way = Literal["init", "exec"]
By = Literal["forward", "exec", "tcp"]
PLACE = "/.excise"
PROGRAM = f"{PLACE}/guest"
LINK = f"{PLACE}/link"
PORT = 8701
SECRET_BYTES = 32
_SECRET = "EXCISE_LINK_SECRET"  # noqa: S105 - the variable's name
_GO = f"{PLACE}/go"
_VOLUME = "excise-guest"
INSIDE = "excise-guest"
"""Of the guest's image: where the program lies."""
# Both sides may come first, so both make the FIFO. The shell waits in the kernel, and becomes the guest.
_WAIT = f'mkfifo {_GO} 2>/dev/null; read -r word < {_GO}; exec {PROGRAM} "$@"'
# `head` takes no more than the program, if no more was sent: nothing is, until the guest has told where it is.
_FETCH = (
    f"head -c $1 > {PROGRAM}.part && chmod 755 {PROGRAM}.part && mv {PROGRAM}.part {PROGRAM} && "
    f'{{ mkfifo {_GO} 2>/dev/null; echo go > {_GO}; }} && shift && if test $# -gt 0; then exec {PROGRAM} "$@"; fi'
)
_SHELLS_OWN = frozenset(("PWD", "OLDPWD", "SHLVL", "_"))


def secret() -> str:
    """Who says it is this create's."""
    return secrets.token_hex(SECRET_BYTES)


def give() -> tuple[str, ...]:
    """The exec whose stdin and stdout become the link of the guest that is there."""
    return (PROGRAM, "-g", LINK)


def fetch(program: bytes, *, and_give: bool) -> tuple[str, ...]:
    """An exec that takes the program from its stdin; and then is as `give`."""
    return ("/bin/sh", "-c", _FETCH, "sh", str(len(program)), *(("-g", LINK) if and_give else ()))


def without_shells(env: Mapping[str, str], way: Way) -> dict[str, str]:
    """What the image says, without what the shell that fetched the program has added."""
    return {name: value for name, value in env.items() if way == "init" or name not in _SHELLS_OWN}


def with_guest(
    pod: Mapping[str, Any], *, way: Way, by: By, image: str, pull_policy: str | None, secret: str, root: bool
) -> dict[str, Any]:
    """`pod` with the guest as PID 1 of its only container. `root`: whoever the image says, so that it can become anyone."""
    spec: Mapping[str, Any] = pod["spec"]
    container: Mapping[str, Any] = spec["containers"][0]
    waits = {"exec": ["-w", LINK], "forward": ["-f", str(PORT)], "tcp": ["-l", str(PORT)]}[by]
    shown = {"name": _VOLUME, "mountPath": PLACE}
    made = {
        **container,
        "command": ["/bin/sh", "-c", _WAIT, "sh"] if way == "exec" else [PROGRAM],
        "args": waits,
        "volumeMounts": [*container.get("volumeMounts", ()), shown],
    }
    if by != "exec":
        made["env"] = [*container.get("env", ()), {"name": _SECRET, "value": secret}]
    if root:
        made["securityContext"] = {**container.get("securityContext", {}), "runAsUser": 0, "runAsGroup": 0}
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
        "command": [f"/{INSIDE}", "-c", PROGRAM],
        "volumeMounts": [shown],
        **{key: container[key] for key in ("resources", "securityContext") if key in container},
    }
    if pull_policy:
        made["imagePullPolicy"] = pull_policy
    return made
