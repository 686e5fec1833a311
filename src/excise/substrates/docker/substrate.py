"""`docker` as a Substrate."""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from excise.errors import CreateError, SandboxLost
from excise.handles import finish
from excise.spec import Spec
from excise.storage.background import to_end
from excise.substrate import Capabilities, Listed, Snapshot, require
from excise.substrates.docker import abilities, container
from excise.substrates.docker.engine import Engine
from excise.substrates.docker.handle import DockerHandle
from excise.substrates.docker.images import Images
from excise.substrates.docker.snapshots import Snapshots


class DockerSubstrate:
    """Containers of a Docker daemon."""

    def __init__(self, *, host: str | None = None, runtime: str | None = None) -> None:
        options = "&".join(f"{key}={value}" for key, value in (("host", host), ("runtime", runtime)) if value)
        self.address = f"docker?{options}" if options else "docker"
        self._runtime = runtime
        self._engine = Engine(host)
        self._images = Images(self._engine)
        self._snapshots = Snapshots(self._engine, self._images, self.address)
        self._capabilities: Capabilities | None = None
        self._handles: dict[str, DockerHandle] = {}
        self._making: dict[str, asyncio.Lock] = {}

    async def probe(self) -> Capabilities:
        found = abilities.find(self._engine, await self._engine.info(), self._runtime)
        self._capabilities = msgspec.structs.replace(found, attach=True)
        return self._capabilities

    async def _found(self) -> Capabilities:
        return self._capabilities or await self.probe()

    # ---- create

    async def create(
        self, start: Spec | Snapshot, *, deadline_s: float, lease_s: float, labels: Mapping[str, str], request_id: str
    ) -> DockerHandle:
        lock = self._making.setdefault(request_id, asyncio.Lock())
        try:
            async with asyncio.timeout(deadline_s), lock:
                if request_id not in self._handles:
                    self._handles[request_id] = await self._make(start, lease_s, labels, request_id)
                return self._handles[request_id]
        except TimeoutError:
            raise CreateError(f"{self.address} made no sandbox in {deadline_s:g} s; allow more if it is only slow") from None
        finally:
            if not lock.locked():
                self._making.pop(request_id, None)

    async def _make(self, begin: Spec | Snapshot, lease_s: float, labels: Mapping[str, str], request_id: str) -> DockerHandle:
        spec, start = (begin, None) if isinstance(begin, Spec) else (begin.spec, begin)
        require(spec, await self._found(), self.address)
        await self._engine.docker()
        image = await (self._images.prepare(spec.image) if start is None else self._snapshots.prepared(start))
        config = container.config(spec, image, labels=labels, lease_s=lease_s, request_id=request_id, runtime=self._runtime)
        for summary in await self._engine.summaries({container.OWNED: "1", container.REQUEST: request_id}):
            return self._handle(summary, spec, request_id, start, lease_s)
        name = container.name(request_id)
        try:
            # To its end: a container whose answer we did not wait for would come into being after we had removed it.
            made = await to_end(self._images.create_container(name, config, spec.image if start is None else image.reference))
            await self._engine.start(made)
        except BaseException:
            await finish(self._engine.remove(name))
            raise
        return self._handle({"Id": made}, spec, request_id, start, lease_s)

    def _handle(
        self, summary: Mapping[str, Any], spec: Spec, request_id: str, start: Snapshot | None, lease_s: float
    ) -> DockerHandle:
        def forget(_: DockerHandle) -> None:
            self._handles.pop(request_id, None)

        return DockerHandle(
            self._engine,
            container.sandbox_of(summary),
            summary["Id"],
            address=self.address,
            capabilities=self._capabilities or Capabilities(),
            spec=spec,
            snapshots=self._snapshots,
            start=start,
            lease_s=lease_s,
            on_close=forget,
        )

    # ---- what is there

    async def attach(self, id: str) -> DockerHandle:
        """The sandbox `id`. The variables and secrets of the spec it was made from are not kept anywhere, so it has none."""
        from aiodocker import DockerError  # noqa: PLC0415 - as above

        await self._engine.docker()
        reset = await self._engine.summaries({container.OWNED: "1", container.SANDBOX: id})
        with self._engine.refusals():
            try:
                shown = await self._engine.show(reset[0]["Id"] if reset else id)
            except DockerError as error:
                if error.status == 404:
                    raise SandboxLost(f"{self.address} has no sandbox {id!r}") from None
                raise
        if shown["Config"]["Labels"].get(container.OWNED) != "1" or not shown["State"]["Running"]:
            raise SandboxLost(f"{self.address} has no living sandbox {id!r}")
        return DockerHandle(
            self._engine,
            shown["Config"]["Labels"].get(container.SANDBOX) or shown["Id"],
            shown["Id"],
            address=self.address,
            capabilities=await self._found(),
            spec=container.spec_of(shown),
            snapshots=self._snapshots,
            ready=True,
        )

    async def list(self, labels: Mapping[str, str]) -> tuple[Listed, ...]:
        found = [container.listed(summary) for summary in await self._engine.summaries({container.OWNED: "1"})]
        return tuple(entry for entry in found if labels.items() <= entry.labels.items())

    async def snapshots(self) -> tuple[Snapshot, ...]:
        return await self._snapshots.list()

    async def discard(self, snapshot: Snapshot) -> None:
        await self._snapshots.discard(snapshot)

    async def collect(self) -> tuple[str, ...]:
        return (*await self._engine.collect(), *await self._snapshots.collect())

    async def close(self) -> None:
        """Close the connections to the daemon. Sandboxes outlive it: their leases, or `close` of each, end them."""
        await self._snapshots.settled()
        await self._engine.close()
