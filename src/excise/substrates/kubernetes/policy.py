"""The NetworkPolicy that closes sandboxes: one for a namespace, shared by all clients, and leased as the pods are."""

import asyncio
import time
from contextlib import suppress
from typing import Any

from excise.substrates.kubernetes import pod
from excise.substrates.kubernetes.api import Api
from excise.substrates.kubernetes.refusals import Conflict, Gone

_NAME = "excise-closed"
_GROUP = "networking.k8s.io/v1"
_RESOURCE = "networkpolicies"
_LEASE_S = 120.0
"""Pods keep it; this is for one that is on its way when somebody collects."""


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

    async def hold(self) -> None:
        """It is there, and stays until the pod that is about to be made keeps it. Asks the server once a minute at most."""
        async with self._holding:
            now_s = time.time()
            if self._until_s >= now_s + _LEASE_S / 2:
                return
            until_s = now_s + _LEASE_S
            try:
                await self._api.patch(_RESOURCE, _NAME, manifest(until_s), group=_GROUP)
            except Gone:
                with suppress(Conflict):  # another client was faster, just now
                    await self._api.create(_RESOURCE, manifest(until_s), group=_GROUP)
            self._until_s = until_s

    async def collect(self) -> None:
        """Delete it if its lease is over; no pod of ours is there."""
        there = await self._api.get(_RESOURCE, _NAME, group=_GROUP)
        if there is not None and (pod.lease_left_s(there) or 0.0) < 0:
            meta = there["metadata"]
            await self._api.delete(_RESOURCE, _NAME, uid=meta["uid"], version=meta["resourceVersion"], group=_GROUP)
