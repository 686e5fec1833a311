"""The NetworkPolicy that closes sandboxes: one for a namespace, shared by all clients, and leased as the pods are."""

import asyncio
import time
from typing import Any

from excise.substrates.kubernetes import pod
from excise.substrates.kubernetes.api import Api
from excise.substrates.kubernetes.refusals import Conflict, Gone

_NAME = "excise-closed"
_GROUP = "networking.k8s.io/v1"
_RESOURCE = "networkpolicies"
_SPARE_S = 6 * 3600.0
"""Its lease is moved on by so much at a time: seldom, and never while a pod is on its way."""


def manifest(until_s: float) -> dict[str, Any]:
    """Nothing in and nothing out of the pods that our label closes."""
    return {
        "apiVersion": _GROUP,
        "kind": "NetworkPolicy",
        "metadata": {"name": _NAME, "labels": {pod.OWNED: "policy"}, "annotations": {pod.LEASE: f"{until_s:.3f}"}},
        "spec": {"podSelector": {"matchLabels": {pod.NETWORK: "closed"}}, "policyTypes": ["Ingress", "Egress"]},
    }


class Policy:
    """What we know of it."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._until_s = 0.0
        self._holding = asyncio.Lock()

    async def hold(self, lease_s: float) -> None:
        """It is there, and stays for as long as a pod with this lease may. Asks the server once in hours."""
        async with self._holding:
            now_s = time.time()
            if self._until_s >= now_s + lease_s:
                return
            until_s = now_s + lease_s + _SPARE_S
            try:
                await self._api.create(_RESOURCE, manifest(until_s), group=_GROUP)
            except Conflict:
                await self._prolong(until_s)
            self._until_s = until_s

    async def _prolong(self, until_s: float) -> None:
        there = await self._api.get(_RESOURCE, _NAME, group=_GROUP)
        if there is not None and (pod.lease_left_s(there) or 0.0) > until_s - time.time():
            return
        try:
            await self._api.patch(_RESOURCE, _NAME, manifest(until_s), group=_GROUP)
        except Gone:
            await self._api.create(_RESOURCE, manifest(until_s), group=_GROUP)

    async def collect(self) -> None:
        """Delete it if its lease is over; no pod of ours is there."""
        there = await self._api.get(_RESOURCE, _NAME, group=_GROUP)
        if there is not None and (pod.lease_left_s(there) or 0.0) < 0:
            meta = there["metadata"]
            await self._api.delete(_RESOURCE, _NAME, uid=meta["uid"], version=meta["resourceVersion"], group=_GROUP)
