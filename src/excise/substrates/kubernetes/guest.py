"""`kubernetes+guest`: the same pods, with the guest as their PID 1 and one stream that lives as long as the sandbox."""

import asyncio
import uuid
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from excise.action import Command
from excise.errors import CreateError, SandboxLost, SpecError
from excise.guest.exchange import Request
from excise.guest.handle import GuestHandle
from excise.guest.link import Link
from excise.guest.programs import guest_image, program
from excise.handles import finish
from excise.requests import EndsWithItsMaker, Requests
from excise.spec import Spec
from excise.substrate import Capabilities, Snapshot, Term, require, unsupported
from excise.substrates.kubernetes import abilities, arrival, events, options, pod
from excise.substrates.kubernetes.arrival import By, Way
from excise.substrates.kubernetes.carrier import Judged
from excise.substrates.kubernetes.linking import Reached, reach
from excise.substrates.kubernetes.options import PullPolicy, Security
from excise.substrates.kubernetes.pods import Pods
from excise.substrates.kubernetes.watch import Followed
from excise.trace import begin_stage

_OWN = ("guest", "guest_image", "link")
_FAR_S = 10**9
_LAST_WORD_S = 2.0


class KubernetesGuestHandle(GuestHandle):
    """A pod whose PID 1 is the guest."""

    def __init__(self, pods: Pods, uid: int, *args: Any, **more: Any) -> None:
        """`uid`: whom the guest runs as; only root can become another."""
        super().__init__(*args, **more)
        self._pods = pods
        self._uid = uid
        self._ended: asyncio.Future[None] | None = None

    def _command(self, action: Command, *, interactive: bool) -> Request:
        if action.user is not None and self._uid != 0:
            raise SpecError(
                f"the image's own user is {self._uid}, so that actions cannot choose theirs: say user= in the spec as well"
            )
        return super()._command(action, interactive=interactive)

    async def renew(self, lease_s: float) -> None:
        self.link.check()
        await self._pods.renew(*pod.split_id(self.id), lease_s)

    async def close(self) -> None:
        """Nothing that ran inside does so on return: a hang-up alone takes a second on its way through a forwarded port."""
        if self._ended is None:
            self._ended = asyncio.ensure_future(self._end_all())
        await finish(self._close_after(self._ended))

    async def _end_all(self) -> None:
        """A greeting is answered once every process of the life before is dead."""
        try:
            async with asyncio.timeout(_LAST_WORD_S):
                self.link.greet({}, None, None)
                await self.link.greeted()
        except (SandboxLost, TimeoutError):
            return  # who does not answer is ended with the pod

    async def _close_after(self, ended: "asyncio.Future[None]") -> None:
        await asyncio.shield(ended)
        await super().close()


class KubernetesGuestSubstrate(EndsWithItsMaker[KubernetesGuestHandle]):
    """Pods of a cluster that end with the process that made them."""

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
        guest: Way | None = None,
        guest_image: str | None = None,
        link: By | None = None,
    ) -> None:
        """`guest`: how its program arrives; `guest_image`: the repository it is in, if in one; `link`: how it is reached."""
        given = {key: value for key, value in locals().items() if key not in ("self", "given")}
        self.address = options.address_of("kubernetes+guest", given)
        self._pods = Pods(options.parsed({key: value for key, value in given.items() if key not in _OWN}))
        self._way: Way = guest or "init"
        self._by: By = link or "forward"
        self._repository = guest_image
        self._requests = Requests[KubernetesGuestHandle](self.address)
        self._capabilities: Capabilities | None = None
        self._program = b""
        self._image = ""

    async def probe(self) -> Capabilities:
        found = abilities.find(self._pods.options, await self._pods.api.version())
        self._program = program("excise-guest").read_bytes()
        name = guest_image()
        self._image = name if self._repository is None else f"{self._repository}:{name.rpartition(':')[2]}"
        users = self._pods.options.security == "default"
        # A life that ends takes every process with it: also the one whose exec the link is.
        adopts = found.adopts if self._by != "exec" else frozenset[Term]()
        self._capabilities = msgspec.structs.replace(
            found, sessions=True, ports=True, signals=True, guest_clock=True, users=users, adopts=adopts
        )
        return self._capabilities

    # ---- create

    async def create(
        self, start: Spec | Snapshot, *, deadline_s: float, lease_s: float, labels: Mapping[str, str], request_id: str
    ) -> KubernetesGuestHandle:
        if isinstance(start, Snapshot):
            raise unsupported(self.address, "snapshots")
        followed = self._pods.follow(pod.name(request_id, pod.GUEST))
        try:
            async with asyncio.timeout(events.in_time_s(deadline_s)):
                make = partial(self._make, start, lease_s, labels, request_id, followed)
                return await self._requests.once(request_id, _FAR_S, make)
        except TimeoutError:
            raise events.late(followed, self.address, deadline_s) from None

    async def _make(
        self, spec: Spec, lease_s: float, labels: Mapping[str, str], request_id: str, followed: Followed
    ) -> KubernetesGuestHandle:
        capabilities = self._capabilities or await self.probe()
        require(spec, capabilities, self.address)
        plain = pod.manifest(
            spec,
            self._pods.options,
            labels=labels,
            lease_s=lease_s,
            request_id=request_id,
            client=self._pods.client,
            made_by=uuid.uuid4().hex,
            path=pod.GUEST,
        )
        secret = arrival.secret()
        manifest = arrival.with_guest(
            plain,
            way=self._way,
            by=self._by,
            image=self._image,
            pull_policy=self._pods.options.pull_policy or (None if self._repository else "IfNotPresent"),
            secret=secret,
            root=spec.user is not None,
        )
        await self._pods.make(manifest, followed, request_id=request_id)
        begin_stage("ready")  # what is left of a start is the guest's answer, not the control plane's
        try:
            reached = await self._reached(followed, secret)
            return self._handle(followed, spec, reached, capabilities)
        except BaseException:
            self._pods.forget(followed)
            await self._pods.undone(manifest)
            raise

    async def _reached(self, followed: Followed, secret: str) -> Reached:
        try:
            return await reach(self._pods.api, followed, self._program, way=self._way, by=self._by, secret=secret)
        except SandboxLost as error:
            # It never was a sandbox: what keeps the guest from being reached is the create's failure.
            raise CreateError(f"the guest in the pod is not reached by link={self._by}: {error}") from None

    def _handle(self, followed: Followed, spec: Spec, reached: Reached, capabilities: Capabilities) -> KubernetesGuestHandle:
        there = followed.pod
        assert there is not None
        id = pod.sandbox_id(there)  # noqa: A001 - what a sandbox's id is called
        name, uid = pod.split_id(id)

        async def why(said: str) -> str:
            found = str(await self._pods.lost(name, uid, followed, said))
            return found if said in found else f"{found} ({said})"  # a guest ends when its link does, and not the reverse

        async def dispose() -> None:
            self._requests.forget(handle)
            await self._remove(followed)

        handle = KubernetesGuestHandle(
            self._pods,
            reached.found.uid,
            Link(Judged(reached.carrier, why)),
            id=id,
            address=self.address,
            capabilities=capabilities,
            spec=spec,
            image_env=arrival.without_shells(reached.found.env, self._way),
            cwd=spec.workdir or reached.found.cwd,
            user=spec.user,
            dispose=dispose,
        )
        return handle

    async def _remove(self, followed: Followed) -> None:
        assert followed.pod is not None
        await self._pods.remove(*pod.split_id(pod.sandbox_id(followed.pod)), followed)

    # ---- the end

    async def collect(self) -> tuple[str, ...]:
        """What outlived its lease; and pods whose guest has ended, which is when its client has."""
        taken = list(await self._pods.collect())
        answer = await self._pods.api.list("pods", labels=f"{pod.OWNED}={pod.GUEST}")
        for one in answer.get("items") or ():
            meta = one["metadata"]
            if one["status"].get("phase") not in ("Succeeded", "Failed"):
                continue
            if await self._pods.api.delete("pods", meta["name"], uid=meta["uid"], version=meta["resourceVersion"]) is not None:
                taken.append(pod.sandbox_id(one))
        return tuple(taken)

    async def close(self) -> None:
        """Close every sandbox, the watch and the connections."""
        await self._requests.close()
        await self._pods.close()
