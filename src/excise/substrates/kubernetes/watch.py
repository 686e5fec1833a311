"""One watch for all pods of a client, and one for what is said of them: no polling, however many are being made."""

import asyncio
import contextvars
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from excise.clock import now_ns
from excise.errors import ExciseError, SubstrateError
from excise.substrates.kubernetes.api import Api, Object
from excise.substrates.kubernetes.refusals import Expired, Forbidden, Unauthorized

_WATCH_S = 300
"""The server ends a watch after so long, and we take it up: a connection that died unseen is noticed by then."""
_LATE_S = 30.0
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_HASTY_S = 1.0
"""A watch that ends sooner was cut off by something in between, and is not taken up at once."""
_HELD_EVENTS = 20
T = TypeVar("T")


class Followed:
    """One pod as the watch shows it. `at_ns`: when each state first came, on our clock."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pod: Object | None = None
        """As it was shown last; of one that is gone, its last state."""
        self.gone = False
        self.events: list[Object] = []
        """What the scheduler and the kubelet said of it."""
        self.on_pod: Callable[[Object, int], None] | None = None
        self.on_event: Callable[[Object, int], None] | None = None
        self._waiting: set[asyncio.Future[None]] = set()
        self._broken: SubstrateError | None = None

    def show(self, pod: Object, *, gone: bool = False) -> None:
        """The watch, or an answer, showed it."""
        if self.pod is not None and not gone and _version(pod) < _version(self.pod) and _uid(pod) == _uid(self.pod):
            return  # an answer that the watch was faster than
        self.pod, self.gone = pod, gone
        if self.on_pod is not None:
            self.on_pod(pod, now_ns())
        self._wake()

    def note(self, event: Object) -> None:
        """Something was said of it."""
        self.events = [*self.events, event][-_HELD_EVENTS:]
        if self.on_event is not None:
            self.on_event(event, now_ns())
        self._wake()

    def give_up(self, error: SubstrateError) -> None:
        """Nothing will be shown any more: whoever waits hears why."""
        self._broken = error
        self._wake()

    async def until(self, met: Callable[["Followed"], T | None]) -> T:
        """What `met` says of it, as soon as that is not None; the caller's deadline ends the wait."""
        while (found := met(self)) is None:
            if self._broken is not None:
                raise self._broken
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(waiting)
            try:
                await waiting
            finally:
                self._waiting.discard(waiting)
        return found

    def _wake(self) -> None:
        for waiting in tuple(self._waiting):
            if not waiting.done():
                waiting.set_result(None)


class Watch:
    """A list, and from there on all changes, of one kind of resource: told to `changed` (its type, the object)."""

    def __init__(
        self,
        api: Api,
        resource: str,
        *,
        labels: str = "",
        fields: str = "",
        changed: Callable[[str, Object], None],
        listed: Callable[[list[Object]], None],
        listing: Callable[[], None] = lambda: None,
        failed: Callable[[SubstrateError], None],
        limit: int | None = None,
    ) -> None:
        self._api = api
        self._resource = resource
        self._selectors = {key: value for key, value in (("labelSelector", labels), ("fieldSelector", fields)) if value}
        self._changed = changed
        self._listed = listed
        self._listing = listing
        self._failed = failed
        self._limit = limit
        """Of what is listed, for who cares only for what comes after."""
        self._version = ""
        self._task: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Return once the list is there; what changes after it will be told. Raises what keeps it from being had."""
        async with self._starting:
            if self._task is None or self._task.done():
                await self._list()
                # Its time is nobody's rollout's.
                self._task = asyncio.get_running_loop().create_task(self._run(), context=contextvars.Context())

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _list(self) -> None:
        self._listing()
        labels, fields = self._selectors.get("labelSelector", ""), self._selectors.get("fieldSelector", "")
        answer = await self._api.list(self._resource, labels=labels, fields=fields, limit=self._limit)
        self._version = answer["metadata"]["resourceVersion"]
        self._listed(answer.get("items") or [])

    async def _run(self) -> None:
        """Follow, and take it up again: where it was if the server ended it, from a fresh list if it broke."""
        pause_s, afresh = 0.0, False
        loop = asyncio.get_running_loop()
        while True:
            try:
                await asyncio.sleep(pause_s)
                if afresh:
                    await self._list()
                    afresh = False
                begun = loop.time()
                await self._follow()
                pause_s = _longer(pause_s) if loop.time() - begun < _HASTY_S else 0.0
            except (Forbidden, Unauthorized) as error:
                self._failed(error)
                return
            except Expired:
                pause_s, afresh = _FIRST_PAUSE_S, True
            except SubstrateError as error:
                pause_s, afresh = _longer(pause_s), True
                _log(f"the watch of {self._resource} broke off and is taken up again in {pause_s:g} s: {error}")
            except ExciseError as error:
                self._failed(SubstrateError(str(error)))
                return

    async def _follow(self) -> None:
        """Until the server ends it."""
        params = {
            **self._selectors,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(_WATCH_S),
        }
        path = self._api.path(self._resource)
        held = b""
        async with self._api.streaming(path, params, what=f"watch {self._resource}", longest_s=_WATCH_S + _LATE_S) as content:
            async for piece in content.iter_any():
                *lines, held = (held + piece).split(b"\n") if b"\n" in piece else (held + piece,)
                for line in lines:
                    if line:
                        self._take(line)

    def _take(self, line: bytes) -> None:
        told: dict[str, Any] = msgspec.json.decode(line)
        kind, thing = told["type"], told["object"]
        if kind == "ERROR":
            if thing.get("code") == 410:
                raise Expired(str(thing.get("message")))
            raise SubstrateError(f"the API server said: {thing.get('message')}")
        self._version = thing["metadata"]["resourceVersion"]
        if kind != "BOOKMARK":
            self._changed(kind, thing)


class PodWatch:
    """The pods with one label, by name."""

    def __init__(self, api: Api, labels: str, *, fields: str = "", hears: bool = True) -> None:
        """`hears`: what is said of them as well."""
        self._labels = dict(one.split("=", 1) for one in labels.split(",") if "=" in one)
        self._followed: dict[str, Followed] = {}
        self._known: frozenset[str] = frozenset()
        self._hears = hears
        self._pods = Watch(
            api,
            "pods",
            labels=labels,
            fields=fields,
            changed=self._changed,
            listed=self._listed,
            listing=self._listing,
            failed=self._failed,
        )
        self._events = Watch(
            api,
            "events",
            fields="involvedObject.kind=Pod",
            changed=lambda _, event: self._said(event),
            listed=lambda _: None,  # said of pods that were there before us
            limit=1,
            failed=self._unheard,
        )

    async def start(self) -> None:
        """Return once changes of pods will be told."""
        await self._pods.start()
        if self._hears:
            try:
                await self._events.start()
            except Forbidden as error:
                self._unheard(error)

    def _unheard(self, error: SubstrateError) -> None:
        self._hears = False
        _log(f"what is said of pods is not seen, so errors say less: {error}")

    def follow(self, name: str) -> Followed:
        """From now on what is seen of the pod called so is told to the one that is returned."""
        return self._followed.setdefault(name, Followed(name))

    def forget(self, followed: Followed) -> None:
        if self._followed.get(followed.name) is followed:
            del self._followed[followed.name]

    async def close(self) -> None:
        await self._pods.close()
        await self._events.close()

    def _changed(self, kind: str, pod: Object) -> None:
        followed = self._followed.get(pod["metadata"]["name"])
        if followed is not None:
            # One that lost our label is another client's now, and told as deleted too.
            labels: dict[str, str] = pod["metadata"].get("labels") or {}
            followed.show(pod, gone=kind == "DELETED" and self._labels.items() <= labels.items())

    def _listing(self) -> None:
        """Only a pod that was seen before a list was asked for is gone if the list has it not."""
        self._known = frozenset(name for name, one in self._followed.items() if one.pod is not None and not one.gone)

    def _listed(self, pods: list[Object]) -> None:
        found = {pod["metadata"]["name"]: pod for pod in pods}
        for name, followed in tuple(self._followed.items()):
            if name in found:
                followed.show(found[name])
            elif name in self._known and followed.pod is not None:
                followed.show(followed.pod, gone=True)

    def _said(self, event: Object) -> None:
        about: Mapping[str, Any] = event.get("involvedObject") or {}
        followed = self._followed.get(about.get("name", ""))
        if followed is not None and (followed.pod is None or _uid(followed.pod) == about.get("uid")):
            followed.note(event)

    def _failed(self, error: SubstrateError) -> None:
        for followed in self._followed.values():
            followed.give_up(error)


def _longer(pause_s: float) -> float:
    return min(max(2 * pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)


def _uid(pod: Mapping[str, Any]) -> str:
    return pod["metadata"].get("uid", "")


def _version(pod: Mapping[str, Any]) -> int:
    """Versions are said to be opaque; those of one object of etcd are numbers that grow, and anything else never is older."""
    version: str = pod["metadata"].get("resourceVersion", "")
    return int(version) if version.isdigit() else 0


def _log(sentence: str) -> None:
    logging.getLogger("excise").warning(sentence)
