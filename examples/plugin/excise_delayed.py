"""A third party's substrate: any other one, with a delay before each verb, as if it stood behind a slower line."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Mapping

from excise.action import Action, Command, Observation
from excise.registry import make
from excise.spec import Spec
from excise.substrate import Capabilities, Change, Connection, Handle, Listed, Process, Snapshot


class DelayedSubstrate:
    """`delayed?source=ADDRESS&delay_s=SECONDS`: the parameters are the address's options."""

    def __init__(self, source: str = "local", delay_s: float = 0.01) -> None:
        self._source = make(source)
        self._delay_s = delay_s
        self.address = f"delayed?source={source}&delay_s={delay_s:g}"

    async def probe(self) -> Capabilities:
        # A wrapper has what its source has: nothing is claimed that the source does not do.
        return await self._source.probe()

    async def create(
        self, start: Spec | Snapshot, *, deadline_s: float, lease_s: float, labels: Mapping[str, str], request_id: str
    ) -> Handle:
        await asyncio.sleep(self._delay_s)
        made = await self._source.create(start, deadline_s=deadline_s, lease_s=lease_s, labels=labels, request_id=request_id)
        return DelayedHandle(made, self._delay_s)

    async def attach(self, id: str) -> Handle:
        return DelayedHandle(await self._source.attach(id), self._delay_s)

    async def list(self, labels: Mapping[str, str]) -> tuple[Listed, ...]:
        return await self._source.list(labels)

    async def snapshots(self) -> tuple[Snapshot, ...]:
        return await self._source.snapshots()

    async def discard(self, snapshot: Snapshot) -> None:
        await self._source.discard(snapshot)

    async def collect(self) -> tuple[str, ...]:
        return await self._source.collect()

    async def close(self) -> None:
        await self._source.close()


class DelayedHandle:
    """One sandbox of the source; only what a rollout does again and again is delayed."""

    def __init__(self, inner: Handle, delay_s: float) -> None:
        self._inner = inner
        self._delay_s = delay_s

    @property
    def id(self) -> str:
        return self._inner.id

    async def alive(self) -> None:
        await self._inner.alive()

    async def adopt(self, spec: Spec) -> None:
        await self._inner.adopt(spec)

    async def run(self, action: Action) -> Observation:
        await asyncio.sleep(self._delay_s)
        return await self._inner.run(action)

    async def start(self, action: Command) -> Process:
        await asyncio.sleep(self._delay_s)
        return await self._inner.start(action)

    async def ready(self) -> None:
        await self._inner.ready()

    async def upload(self, path: str, tar: AsyncIterable[bytes]) -> None:
        await self._inner.upload(path, tar)

    def download(self, path: str) -> AsyncIterator[bytes]:
        return self._inner.download(path)

    async def connect(self, port: int) -> Connection:
        return await self._inner.connect(port)

    async def snapshot(self, *, keep_s: float | None = None) -> Snapshot:
        return await self._inner.snapshot(keep_s=keep_s)

    async def diff(self, since: Snapshot | None, *, contents: bool = False) -> tuple[Change, ...]:
        return await self._inner.diff(since, contents=contents)

    async def reset(self, snapshot: Snapshot) -> None:
        await self._inner.reset(snapshot)

    async def pause(self) -> None:
        await self._inner.pause()

    async def resume(self) -> None:
        await self._inner.resume()

    async def renew(self, lease_s: float) -> None:
        await self._inner.renew(lease_s)

    async def close(self) -> None:
        await self._inner.close()
