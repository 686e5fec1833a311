"""A URL as a Substrate."""

import asyncio
from collections.abc import Mapping

import msgspec

from excise.channel import records
from excise.errors import CreateError
from excise.spec import Spec
from excise.substrate import Capabilities, Listed, Snapshot, require, unsupported
from excise.substrates.remote.client import PATIENCE_S, Client
from excise.substrates.remote.handle import RemoteHandle
from excise.substrates.remote.where import where

_NO_TIME_S = 1e-6
_ANSWER_S = 5.0
"""How long after its deadline a server may take to say that it has passed."""


class RemoteSubstrate:
    """What a server hands out. Its Capabilities are those of what it serves."""

    def __init__(self, url: str, *, key: str | None = None, address: str | None = None) -> None:
        """`key`: instead of the one that the environment says. `address`: what it is called, if not by its URL."""
        there = where(url)
        self.address = address or there.url
        self._client = Client(there, key)
        self._able: records.Able | None = None

    async def probe(self) -> Capabilities:
        able = self._able
        if able is None:
            able = self._able = await self._client.ask(records.Probe(), deadline_s=PATIENCE_S)
        assert able is not None
        return able.capabilities

    async def create(
        self, start: Spec | Snapshot, *, deadline_s: float, lease_s: float, labels: Mapping[str, str], request_id: str
    ) -> RemoteHandle:
        ends_s = asyncio.get_running_loop().time() + deadline_s
        try:
            async with asyncio.timeout_at(ends_s + _ANSWER_S):
                capabilities = await self.probe()
                left_s = ends_s - asyncio.get_running_loop().time()
                asked = records.Create(
                    spec=start if isinstance(start, Spec) else None,
                    snapshot=None if isinstance(start, Spec) else start,
                    deadline_s=max(left_s, _NO_TIME_S),
                    lease_s=lease_s,
                    labels=labels,
                    request_id=request_id,
                )
                require(start if isinstance(start, Spec) else start.spec, capabilities, self.address)
                made: records.Made = await self._client.ask(asked, deadline_s=left_s)
        except TimeoutError:
            raise CreateError(f"{self.address} made no sandbox in {deadline_s:g} s") from None
        return RemoteHandle(self._client, made.id, self.address, capabilities)

    async def attach(self, id: str) -> RemoteHandle:
        capabilities = await self.probe()
        made: records.Made = await self._client.ask(records.Attach(id))
        return RemoteHandle(self._client, made.id, self.address, capabilities)

    async def list(self, labels: Mapping[str, str]) -> tuple[Listed, ...]:
        return (await self._client.ask(records.Look(labels))).listed

    async def snapshots(self) -> tuple[Snapshot, ...]:
        await self._require_snapshots()
        taken = (await self._client.ask(records.Snapshots())).snapshots
        return tuple(msgspec.structs.replace(one, address=self.address) for one in taken)

    async def discard(self, snapshot: Snapshot) -> None:
        await self._require_snapshots()
        await self._client.ask(records.Discard(snapshot))

    async def _require_snapshots(self) -> None:
        if (await self.probe()).snapshot is None:
            raise unsupported(self.address, "snapshots")

    async def collect(self) -> tuple[str, ...]:
        return (await self._client.ask(records.Collect())).names

    async def close(self) -> None:
        await self._client.close()
