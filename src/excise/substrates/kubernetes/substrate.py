"""`kubernetes` as a Substrate."""

import asyncio
import uuid
from collections.abc import Mapping

import msgspec

from excise.spec import Spec
from excise.substrate import Capabilities, Listed, Snapshot, require, unsupported
from excise.substrates.kubernetes import abilities, events, options, pod
from excise.substrates.kubernetes.handle import KubernetesHandle
from excise.substrates.kubernetes.options import PullPolicy, Security
from excise.substrates.kubernetes.pods import Pods
from excise.substrates.kubernetes.watch import Followed

PATH = "exec"
_UNREAD_BYTES = 48 << 20
"""Of an exec's output, in the buffers of three connections, of which one end is ours: 15 to 20 MiB were measured."""


class KubernetesSubstrate:
    """Pods of a cluster."""

    def __init__(
        self,
        *,
        namespace: str | None = None,
        context: str | None = None,
        kubeconfig: str | None = None,
        image: str | None = None,
        runtime_class: str | None = None,
        node_selector: str | None = None,
        tolerations: str | None = None,
        pull_policy: PullPolicy | None = None,
        pull_secrets: str | None = None,
        service_account: str | None = None,
        security: Security | None = None,
        ephemeral_storage: str | None = None,
        network_policy: bool | None = None,
        network_enforced: bool | None = None,
    ) -> None:
        given = {key: value for key, value in locals().items() if key not in ("self", "given")}
        self.address = options.address_of("kubernetes", given)
        self._pods = Pods(options.parsed(given))
        self._capabilities: Capabilities | None = None
        self._handles: dict[str, KubernetesHandle] = {}
        self._making: dict[str, asyncio.Lock] = {}

    async def probe(self) -> Capabilities:
        found = abilities.find(self._pods.options, await self._pods.api.version())
        self._capabilities = msgspec.structs.replace(found, attach=True, unread_bytes=_UNREAD_BYTES)
        return self._capabilities

    # ---- create

    async def create(
        self, start: Spec | Snapshot, *, deadline_s: float, lease_s: float, labels: Mapping[str, str], request_id: str
    ) -> KubernetesHandle:
        if isinstance(start, Snapshot):
            raise unsupported(self.address, "snapshots")
        lock = self._making.setdefault(request_id, asyncio.Lock())
        followed = Followed("")  # who only waits for another's create has nothing to tell
        try:
            async with asyncio.timeout(events.in_time_s(deadline_s)), lock:
                if request_id not in self._handles:
                    followed = self._pods.follow(pod.name(request_id, PATH))
                    self._handles[request_id] = await self._make(start, lease_s, labels, request_id, followed)
                return self._handles[request_id]
        except TimeoutError:
            raise events.late(followed, self.address, deadline_s) from None
        finally:
            if request_id not in self._handles:
                self._pods.forget(followed)
            if not lock.locked():
                self._making.pop(request_id, None)

    async def _make(
        self, spec: Spec, lease_s: float, labels: Mapping[str, str], request_id: str, followed: Followed
    ) -> KubernetesHandle:
        capabilities = self._capabilities or await self.probe()
        require(spec, capabilities, self.address)
        manifest = pod.manifest(
            spec,
            self._pods.options,
            labels=labels,
            lease_s=lease_s,
            request_id=request_id,
            client=self._pods.client,
            made_by=uuid.uuid4().hex,
            path=PATH,
        )
        await self._pods.make(manifest, followed, request_id=request_id)
        assert followed.pod is not None

        def forget(_: KubernetesHandle) -> None:
            self._handles.pop(request_id, None)

        return KubernetesHandle(
            self._pods,
            followed.pod,
            address=self.address,
            capabilities=capabilities,
            spec=spec,
            followed=followed,
            on_close=forget,
        )

    # ---- what is there

    async def attach(self, id: str) -> KubernetesHandle:
        """The sandbox `id`. The variables and secrets of the spec it was made from are not kept anywhere, so it has none."""
        there = await self._pods.find(id, PATH)
        return KubernetesHandle(
            self._pods,
            there,
            address=self.address,
            capabilities=self._capabilities or await self.probe(),
            spec=pod.spec_of(there),
            ready=True,
        )

    async def list(self, labels: Mapping[str, str]) -> tuple[Listed, ...]:
        return tuple(pod.listed(one) for one in await self._pods.list(labels, PATH))

    async def snapshots(self) -> tuple[Snapshot, ...]:
        raise unsupported(self.address, "snapshots")

    async def discard(self, snapshot: Snapshot) -> None:
        raise unsupported(self.address, "snapshots")

    async def collect(self) -> tuple[str, ...]:
        return await self._pods.collect()

    async def close(self) -> None:
        """Close the watch and the connections. Sandboxes outlive it: their leases, or `close` of each, end them."""
        await self._pods.close()
