"""What an address says of the cluster and of the pods to make there."""

import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from excise.errors import SpecError

PullPolicy = Literal["Always", "IfNotPresent", "Never"]
Security = Literal["default", "restricted"]
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The same for all sandboxes of one address."""

    namespace: str | None = None
    context: str | None = None
    kubeconfig: str | None = None
    image: str = "excise/base"
    """What the image `host` stands for: a cluster does not have this machine's files."""
    runtime_class: str | None = None
    node_selector: Mapping[str, str] = {}
    tolerations: tuple[Mapping[str, str], ...] = ()
    pull_policy: PullPolicy | None = None
    pull_secrets: tuple[str, ...] = ()
    service_account: str | None = None
    security: Security = "default"
    ephemeral_storage: str | None = None
    """A pod that writes more than this is evicted, which is a loss and no Observation: so it is no `disk_bytes`."""
    network_policy: bool = True
    """Keep a NetworkPolicy in the namespace that closes every sandbox whose spec does not open its network."""
    network_enforced: bool = False
    """The user's word that this cluster's network plugin holds to NetworkPolicies. Many do not, and none says so."""


def address_of(name: str, given: Mapping[str, Any]) -> str:
    """The address with the options that were given, in its canonical order."""
    texts = {key: int(value) if isinstance(value, bool) else value for key, value in given.items() if value is not None}
    said = "&".join(f"{key}={value}" for key, value in texts.items())
    return f"{name}?{said}" if said else name


def parsed(given: Mapping[str, Any]) -> Options:
    """The options, from the texts of an address."""
    made = {key: value for key, value in given.items() if value is not None}
    made |= {"node_selector": pairs(made.get("node_selector"), "node_selector")}
    made |= {"tolerations": tolerations(made.get("tolerations")), "pull_secrets": names(made.get("pull_secrets"))}
    return Options(**made)


def pairs(text: str | None, option: str) -> dict[str, str]:
    """`key:value,key:value`; a label's key may hold dots and a slash, but no colon."""
    made: dict[str, str] = {}
    for part in filter(None, (text or "").split(",")):
        key, colon, value = part.partition(":")
        if not key or not colon:
            raise SpecError(f"{option}={text}: it is key:value, several with commas between, as in disk:ssd,zone:a")
        made[key] = value
    return made


def tolerations(text: str | None) -> tuple[dict[str, str], ...]:
    """`key=value:Effect`, `key:Effect`, `key` or `*`, several with commas between, as `kubectl taint` writes them."""
    return tuple(_toleration(part) for part in filter(None, (text or "").split(",")))


def _toleration(part: str) -> dict[str, str]:
    if part == "*":
        return {"operator": "Exists"}
    said = re.fullmatch(r"([^=:]+)(?:=([^=:]*))?(?::(\w+))?", part)
    if not said or (said[3] and said[3] not in _EFFECTS):
        raise SpecError(f"tolerations={part}: one looks like gpu=true:NoSchedule; effects: {', '.join(_EFFECTS)}")
    made = {"key": said[1], "operator": "Exists" if said[2] is None else "Equal"}
    if said[2] is not None:
        made["value"] = said[2]
    return {**made, "effect": said[3]} if said[3] else made


def names(text: str | None) -> tuple[str, ...]:
    return tuple(filter(None, (text or "").split(",")))
