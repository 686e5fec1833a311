"""The pods of one client: made, found again, renewed, removed, collected; both paths into them stand on this."""

import asyncio
import contextvars
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from excise.clock import now_ns
from excise.errors import CreateError, ExciseError, SandboxLost, SubstrateError
from excise.handles import finish
from excise.substrates.kubernetes import events, pod
from excise.substrates.kubernetes.api import REQUEST_S, Api, Object
from excise.substrates.kubernetes.options import Options
from excise.substrates.kubernetes.policy import Policy
from excise.substrates.kubernetes.refusals import Conflict, losses
from excise.substrates.kubernetes.spans import Milestones
from excise.substrates.kubernetes.watch import Followed, PodWatch

_GONE_S = 60.0
_UNDO_S = 5.0
_TOLD_S = 5.0
"""For the kubelet to say why a container is no more: an exec notices before the pod's status does."""


class Pods:
    """What a substrate of pods does the same way, whatever runs in them."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.client = uuid.uuid4().hex
        self.api = Api(options.kubeconfig, options.context, options.namespace)
        self._watch = PodWatch(self.api, f"{pod.CLIENT}={self.client}")
        self._policy = Policy(self.api)
        self._undoing: set[asyncio.Task[None]] = set()

    # ---- create

    def follow(self, name: str) -> Followed:
        """What is seen of the pod called so, for `make`; afterwards it says how far that came."""
        return self._watch.follow(name)

    def forget(self, followed: Followed) -> None:
        """What is seen of it is of no use any more."""
        self._watch.forget(followed)

    async def make(self, manifest: Object, followed: Followed, *, request_id: str) -> None:
        """The pod, its container running; the caller's deadline ends the wait. Failed, none that we made is left."""
        milestones = Milestones()
        milestones.attach(followed)
        sent: list[asyncio.Future[Object]] | None = None
        try:
            await self._watch.start()
            if self.options.network_policy:
                await self._policy.hold()
            sent = []
            milestones.begin()
            made = await self._post(manifest, followed, sent)
            milestones.reached("accepted", now_ns())
            await followed.until(_ready_or_refused)
        except BaseException:
            self.forget(followed)
            if sent is not None:
                await self.undone(manifest, sent)
            raise
        finally:
            milestones.detach(followed)
        if made:
            milestones.note(request_id)

    async def _post(self, manifest: Object, followed: Followed, sent: "list[asyncio.Future[Object]]") -> bool:
        """Whether it was made now; one of this request that is there is taken over. `sent`: what goes on if we do not."""
        while True:
            try:
                # To its end: a pod whose answer nobody waited for would come into being after it had been removed.
                sent[:] = [asyncio.ensure_future(self.api.create("pods", manifest))]
                followed.show(await asyncio.shield(sent[0]))
                return True
            except Conflict:
                found = await self._existing(manifest, followed)
                if found:
                    return False

    async def _existing(self, manifest: Object, followed: Followed) -> bool:
        """Take over the pod of this name; False if it has gone meanwhile, so that the name is free."""
        name = manifest["metadata"]["name"]
        there = await self.api.get("pods", name)
        if there is None:
            return False
        if pod.path_of(there) != pod.path_of(manifest) or pod.request_of(there) != pod.request_of(manifest):
            raise CreateError(f"a pod called {name} is there, and is no sandbox of this request: delete it")
        if there["metadata"].get("deletionTimestamp"):
            await self._until_gone(there)
            return False
        if pod.path_of(manifest) == pod.GUEST:
            return await self._replaceable(there)
        # Ours from now on, so that our watch shows it. A UID that is another's by now is a Conflict.
        labels = {pod.CLIENT: self.client}
        followed.show(await self.api.patch("pods", name, {"metadata": {"uid": there["metadata"]["uid"], "labels": labels}}))
        return True

    async def _replaceable(self, there: Object) -> bool:
        """False, when the name is free. A guest speaks to the one client it ends with: while it lives, no other can have it."""
        if events.loss(there) is None:
            raise CreateError("another client made the sandbox of this request, and its guest speaks to no other: name another")
        await self.remove(there["metadata"]["name"], there["metadata"]["uid"])
        return False

    async def undone(self, manifest: Object, sent: "Sequence[asyncio.Future[Object]]" = ()) -> None:
        """Remove the pod of a create that failed. From an API that does not answer no deadline waits: `close` does."""
        undoing = asyncio.get_running_loop().create_task(self._undo(manifest, sent), context=contextvars.Context())
        self._undoing.add(undoing)
        undoing.add_done_callback(self._undoing.discard)
        await finish(asyncio.wait({undoing}, timeout=_UNDO_S))

    async def _undo(self, manifest: Object, sent: "Sequence[asyncio.Future[Object]]") -> None:
        """If that create made one: one that was there before lives on."""
        name = manifest["metadata"]["name"]
        if sent:
            await asyncio.wait(sent, timeout=REQUEST_S)  # one that an overloaded server puts off again and again is let go
            sent[0].cancel()
            await asyncio.gather(*sent, return_exceptions=True)
        try:
            # A create whose answer was lost may have made one: it has a name that we know.
            there = await self.api.get("pods", name)
            if there is not None and pod.made_by(there) == pod.made_by(manifest):
                await self.remove(name, there["metadata"]["uid"])
        except ExciseError as error:
            _log(f"the pod {name} may be left until its lease ends, and `excise gc` takes it then: {error}")

    # ---- what is there

    async def find(self, id: str, path: str) -> Object:
        """The living pod of a sandbox."""
        name, uid = pod.split_id(id)
        there = await self.api.get("pods", name) if name else None
        if there is None or there["metadata"]["uid"] != uid or pod.path_of(there) != path:
            raise SandboxLost(f"there is no sandbox {id!r} in the namespace {self.api.namespace}")
        lost = events.loss(there)
        if lost is not None:
            raise lost
        return there

    async def list(self, labels: Mapping[str, str], path: str) -> list[Object]:
        found: list[Object] = (await self.api.list("pods", labels=pod.selector(labels, path))).get("items") or []
        return [one for one in found if labels.items() <= pod.labels_of(one).items()]

    async def lost(self, name: str, uid: str, followed: Followed | None, otherwise: str) -> SandboxLost:
        """Why the sandbox is no more, by its pod's own status; `otherwise` if that shows nothing."""
        try:
            async with asyncio.timeout(_TOLD_S):
                if followed is not None and _is_shown(followed, self.client):
                    return await followed.until(_loss)
                async with self._alone(name) as seen:
                    return await seen.until(lambda pod: _loss(pod) if _uid(pod.pod) == uid else events.loss(None))
        except TimeoutError:
            return SandboxLost(otherwise)
        except ExciseError as error:
            return SandboxLost(f"{otherwise} ({error})")

    async def renew(self, name: str, uid: str, lease_s: float) -> None:
        until = {pod.LEASE: f"{time.time() + lease_s:.3f}"}
        with losses():
            await self.api.patch("pods", name, {"metadata": {"uid": uid, "annotations": until}})

    # ---- the end

    async def remove(self, name: str, uid: str, followed: Followed | None = None) -> None:
        """It is gone on return; one that is not there is fine."""
        answer = await self.api.delete("pods", name, uid=uid)
        if answer is not None and answer.get("kind") == "Pod" and answer["metadata"].get("finalizers"):
            await self._until_gone(answer)
        if followed is not None:
            self.forget(followed)

    async def _until_gone(self, there: Object) -> None:
        """Somebody's finalizer, or a kubelet, is still at it: a watch on this one says when they are done."""
        name, uid = there["metadata"]["name"], there["metadata"]["uid"]
        try:
            async with asyncio.timeout(_GONE_S), self._alone(name, there) as followed:
                await followed.until(lambda seen: seen.gone or _uid(seen.pod) != uid or None)
        except TimeoutError:
            holds = ", ".join(there["metadata"].get("finalizers") or ()) or "its node"
            raise SubstrateError(
                f"the pod {name} is being deleted, and {holds} held it for {_GONE_S:g} s: look there"
            ) from None

    @asynccontextmanager
    async def _alone(self, name: str, there: Object | None = None) -> AsyncGenerator[Followed]:
        """One pod by a watch of its own: whose it is does not matter. `there`: as it was seen last."""
        watch = PodWatch(self.api, "", fields=f"metadata.name={name}", hears=False)
        followed = watch.follow(name)
        if there is not None:
            followed.show(there)
        try:
            await watch.start()
            yield followed
        finally:
            await watch.close()

    async def collect(self) -> tuple[str, ...]:
        """Delete the pods, of either path, whose lease ran out, and say which; then the policy if nothing needs it."""
        answer = await self.api.list("pods", labels=pod.OWNED)
        found: list[Object] = answer.get("items") or []
        taken: list[str] = []
        for one in found:
            left_s = pod.lease_left_s(one)
            meta = one["metadata"]
            if left_s is None or left_s >= 0:
                continue
            # As it was listed: one that was renewed meanwhile, or made anew, is not taken.
            if await self.api.delete("pods", meta["name"], uid=meta["uid"], version=meta["resourceVersion"]) is not None:
                taken.append(pod.sandbox_id(one))
        if self.options.network_policy and len(taken) == len(found):
            await self._policy.collect()
        return tuple(taken)

    async def close(self) -> None:
        if self._undoing:
            await asyncio.wait(self._undoing)  # each of its requests is given up after a while
        await self._watch.close()
        await self.api.close()


def _ready_or_refused(followed: Followed) -> bool | None:
    """True once its container runs; raises a cause that is definitive."""
    if (error := events.refusal(followed)) is not None:
        raise error
    return (followed.pod is not None and events.is_started(followed.pod)) or None


def _is_shown(followed: Followed, client: str) -> bool:
    """Whether our watch tells of it: one that another client took over has lost our label, and is shown to that one."""
    labels: Mapping[str, str] = (followed.pod or {"metadata": {}})["metadata"].get("labels") or {}
    return followed.gone or labels.get(pod.CLIENT) == client


def _loss(followed: Followed) -> SandboxLost | None:
    return events.loss(followed.pod, gone=followed.gone, events=followed.events)


def _uid(there: Mapping[str, Any] | None) -> str:
    return "" if there is None else there["metadata"].get("uid", "")


def _log(sentence: str) -> None:
    logging.getLogger("excise").warning(sentence)
