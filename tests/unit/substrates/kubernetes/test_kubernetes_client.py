"""The client against a server that does what real ones do seldom: refuses, is overloaded, forgets, hangs up in the middle."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import WSMsgType, web

from excise.action import Exec
from excise.errors import CapacityError, ExciseError, SandboxLost, SpecError, SubstrateError
from excise.guestless.actions import Actions
from excise.guestless.inside import Inside, Start
from excise.substrates.kubernetes.api import Api
from excise.substrates.kubernetes.refusals import Conflict, Forbidden, Gone, Unauthorized, Unreachable, losses
from excise.substrates.kubernetes.watch import PodWatch
from excise.substrates.kubernetes.wire import Boot, PodWire

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
PODS = "/api/v1/namespaces/here/pods"
EVENTS = "/api/v1/namespaces/here/events"


async def against(tmp_path: Path, answer: Answer, use: Callable[[Api], Awaitable[None]]) -> None:
    """`use` an Api whose server gives `answer` to everything."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    path = tmp_path / "config"
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}
    context = {"name": "x", "context": {"cluster": "c", "namespace": "here"}}
    path.write_text(yaml.safe_dump({"current-context": "x", "clusters": [cluster], "contexts": [context]}))
    api = Api(str(path))
    try:
        await use(api)
    finally:
        await api.close()
        await runner.cleanup()


def refused_with(tmp_path: Path, status: int, message: str) -> ExciseError:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response({"kind": "Status", "message": message}, status=status)

    seen: list[ExciseError] = []

    async def use(api: Api) -> None:
        with pytest.raises(ExciseError) as refused:
            await api.create("pods", {})
        seen.append(refused.value)

    asyncio.run(against(tmp_path, answer, use))
    return seen[0]


CANNOT = 'pods is forbidden: User "u" cannot create resource "pods" in API group "" in the namespace "here"'
REFUSALS: list[tuple[int, str, type[ExciseError], str]] = [
    (401, "Unauthorized", Unauthorized, "sign in again"),
    (403, CANNOT, Forbidden, "you may not create pods in namespace here: grant it"),
    (403, 'pods "p" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1', CapacityError, "quota"),
    (403, 'pods "p" is forbidden: violates PodSecurity "restricted:latest": x', SpecError, "security=restricted"),
    (403, 'pods "p" is forbidden: maximum memory usage per Container is 1Gi', SpecError, "LimitRange"),
    (403, 'pods "p" is forbidden: pod rejected: RuntimeClass "x" not found', SpecError, "runtime_class"),
    (403, 'pods "p" is forbidden: error looking up service account here/x: not found', SpecError, "service_account"),
    (404, 'namespaces "here" not found', SpecError, "kubectl create namespace here"),
    (404, "the server could not find the requested resource", Gone, "not there"),
    (409, 'pods "p" already exists', Conflict, "already exists"),
    (422, "Pod is invalid: spec.x: Invalid value", SpecError, "Invalid value"),
    (429, "too many requests", CapacityError, "overloaded"),
    (500, "etcdserver: request timed out", Unreachable, "try again"),
    (
        500,
        "error dialing backend: https://node:10250/exec/a/b?command=sh&command=-c refused",
        SubstrateError,
        "/exec/a/b refused",
    ),
    (503, "<html>no</html>", SubstrateError, "503"),
]


@pytest.mark.parametrize(("status", "message", "kind", "words"), REFUSALS)
def test_a_refusal_says_who_must_do_what(tmp_path: Path, status: int, message: str, kind: type, words: str) -> None:
    found = refused_with(tmp_path, status, message)
    assert type(found) is kind
    assert words in str(found)


def test_overload_is_waited_out_as_the_server_says(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        if len(asked) < 3:
            return web.json_response({}, status=429, headers={"Retry-After": "0"})
        return web.json_response({"metadata": {}})

    async def use(api: Api) -> None:
        await api.create("pods", {})

    with caplog.at_level(logging.WARNING, "excise"):
        asyncio.run(against(tmp_path, answer, use))
    assert len(asked) == 3
    assert caplog.text.count("is overloaded and wants") == 2


def test_overload_is_waited_out_within_the_callers_deadline(tmp_path: Path) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response({}, status=429, headers={"Retry-After": "30"})

    async def use(api: Api) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await api.create("pods", {})

    asyncio.run(against(tmp_path, answer, use))


def test_nobody_there_is_told_with_who_named_the_place(tmp_path: Path) -> None:
    path = tmp_path / "config"
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}
    held = {"current-context": "x", "clusters": [cluster], "contexts": [{"name": "x", "context": {"cluster": "c"}}]}
    path.write_text(yaml.safe_dump(held))

    async def main() -> None:
        api = Api(str(path))
        try:
            with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1 \(context 'x' of "):
                await api.version()
            with pytest.raises(SandboxLost), losses():
                await api.version()
        finally:
            await api.close()

    asyncio.run(main())


def test_a_delete_takes_only_what_it_means(tmp_path: Path) -> None:
    bodies: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.json())
        return web.json_response({"message": "the UID in the precondition does not match"}, status=409)

    async def use(api: Api) -> None:
        assert await api.delete("pods", "p", uid="u", version="7") is None

    asyncio.run(against(tmp_path, answer, use))
    assert bodies[0]["preconditions"] == {"uid": "u", "resourceVersion": "7"}
    assert bodies[0]["gracePeriodSeconds"] == 0


# ---- the watch


def shown(name: str, version: int, **status: Any) -> dict[str, Any]:
    labels = {"client": "me"}
    return {"metadata": {"name": name, "uid": name, "resourceVersion": str(version), "labels": labels}, "status": status}


class Cluster:
    """Lists and watches of pods, one after another, as they are given."""

    def __init__(self, lists: list[list[dict[str, Any]]], watches: list[list[object]]) -> None:
        self.lists, self.watches = lists, watches
        self.versions: list[str] = []
        self.hold = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == EVENTS:
            return web.json_response({"message": CANNOT}, status=403)
        if "watch" not in request.query:
            return web.json_response({"metadata": {"resourceVersion": "10"}, "items": self.lists.pop(0)})
        self.versions.append(request.query["resourceVersion"])
        stream = web.StreamResponse()
        await stream.prepare(request)
        for line in self.watches.pop(0) if self.watches else ["hold"]:
            if line == "hold":
                await self.hold.wait()
            elif line == "cut":
                assert request.transport is not None
                request.transport.abort()
                return stream
            else:
                whole = json.dumps(line).encode() + b"\n"
                await stream.write(whole[:9])
                await stream.write(whole[9:])
        return stream


def told(kind: str, thing: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "object": thing}


def watched(tmp_path: Path, cluster: Cluster, use: Callable[[PodWatch], Awaitable[None]]) -> None:
    async def with_api(api: Api) -> None:
        watch = PodWatch(api, "client=me")
        try:
            async with asyncio.timeout(20):
                await use(watch)
        finally:
            await watch.close()
            cluster.hold.set()

    asyncio.run(against(tmp_path, cluster.answer, with_api))


def test_changes_are_told_as_they_come_and_bookmarks_are_remembered(tmp_path: Path) -> None:
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "50"}}}
    first = [told("ADDED", shown("p", 11)), told("MODIFIED", shown("p", 12, phase="Running")), bookmark]
    cluster = Cluster([[]], [first, [told("DELETED", shown("p", 60)), "hold"]])

    async def use(watch: PodWatch) -> None:
        followed = watch.follow("p")
        seen: list[str] = []
        followed.on_pod = lambda pod, _: seen.append(pod["metadata"]["resourceVersion"])
        await watch.start()
        await followed.until(lambda one: one.gone or None)
        assert seen == ["11", "12", "60"]

    watched(tmp_path, cluster, use)
    assert cluster.versions == ["10", "50"]


@pytest.mark.parametrize(("end", "told_so"), [({"type": "ERROR", "object": {"code": 410}}, False), ("cut", True)])
def test_a_watch_that_breaks_is_taken_up_from_a_fresh_list(
    tmp_path: Path, end: Any, told_so: bool, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster([[], [shown("other", 80)]], [[told("ADDED", shown("p", 11)), told("ADDED", shown("other", 12)), end]])

    async def use(watch: PodWatch) -> None:
        followed, other = watch.follow("p"), watch.follow("other")
        await watch.start()
        await followed.until(lambda one: one.gone or None)  # it is not in the second list
        await other.until(lambda one: (one.pod or {})["metadata"]["resourceVersion"] == "80" or None)
        assert not other.gone

    watched(tmp_path, cluster, use)
    assert ("the watch of pods broke off" in caplog.text) is told_so  # an old version is an ordinary thing


def test_a_pod_made_while_a_list_is_under_way_is_not_gone(tmp_path: Path) -> None:
    cluster = Cluster([[]], [["hold"]])

    async def use(watch: PodWatch) -> None:
        followed = watch.follow("p")
        starting = asyncio.ensure_future(watch.start())
        await asyncio.sleep(0)
        followed.show(shown("p", 11))  # a create's answer, before that of the list
        await starting
        assert not followed.gone

    watched(tmp_path, cluster, use)


def test_an_answer_older_than_what_the_watch_showed_is_dropped(tmp_path: Path) -> None:
    cluster = Cluster([[]], [[told("ADDED", shown("p", 15, phase="Running")), "hold"]])

    async def use(watch: PodWatch) -> None:
        followed = watch.follow("p")
        await watch.start()
        await followed.until(lambda one: one.pod)
        followed.show(shown("p", 11))
        assert followed.pod is not None
        assert followed.pod["status"] == {"phase": "Running"}

    watched(tmp_path, cluster, use)


def test_one_that_another_client_took_over_is_not_gone(tmp_path: Path) -> None:
    taken = shown("p", 12)
    taken["metadata"]["labels"] = {"client": "other"}
    cluster = Cluster([[]], [[told("ADDED", shown("p", 11)), told("DELETED", taken), "hold"]])

    async def use(watch: PodWatch) -> None:
        followed = watch.follow("p")
        await watch.start()
        await followed.until(lambda one: (one.pod or {}).get("metadata", {}).get("resourceVersion") == "12" or None)
        assert not followed.gone

    watched(tmp_path, cluster, use)


def test_who_waits_hears_that_the_watch_is_no_more(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query and request.path == PODS:
            return web.json_response({"message": CANNOT.replace("create", "watch")}, status=403)
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})

    async def use(api: Api) -> None:
        watch = PodWatch(api, "client=me", hears=False)
        followed = watch.follow("p")
        try:
            await watch.start()
            with pytest.raises(Forbidden, match="you may not watch pods"):
                await followed.until(lambda one: one.pod)
        finally:
            await watch.close()

    asyncio.run(against(tmp_path, answer, use))


# ---- exec


def serving(script: Callable[[web.WebSocketResponse], Awaitable[None]], protocol: str, asked: list[Any]) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(list(request.query.items()))
        socket = web.WebSocketResponse(protocols=(protocol,))
        await socket.prepare(request)
        await script(socket)
        await socket.close()
        return socket

    return answer


FAILED = {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": [{"reason": "ExitCode", "message": "7"}]}}
ENDINGS: list[tuple[bytes | None, tuple[int | None, str] | None]] = [
    (b'{"status":"Success"}', (0, "")),
    (json.dumps(FAILED).encode(), (7, "")),
    (b'{"status":"Failure","message":"no sh"}', (None, "no sh")),
    (None, None),
]


@pytest.mark.parametrize(("status", "ending"), ENDINGS)
def test_an_exec_s_output_and_end(tmp_path: Path, status: bytes | None, ending: Any) -> None:
    async def script(socket: web.WebSocketResponse) -> None:
        for message in (b"\x01", b"\x01out", b"\x02err", b"\x01more"):  # the first: a server's way to say hello
            await socket.send_bytes(message)
        if status is not None:
            await socket.send_bytes(b"\x03" + status[:5])
            await socket.send_bytes(b"\x03" + status[5:])

    asked: list[Any] = []

    async def use(api: Api) -> None:
        stream = await api.exec("p", "c", ("echo", "a b&c"))
        assert [await stream.frame() for _ in range(4)] == [(1, b"out"), (2, b"err"), (1, b"more"), None]
        assert (None if stream.ending is None else (stream.ending.exit_code, stream.ending.message)) == ending
        stream.close()
        stream.close()

    asyncio.run(against(tmp_path, serving(script, "v5.channel.k8s.io", asked), use))
    assert [value for key, value in asked[0] if key == "command"] == ["echo", "a b&c"]


@pytest.mark.parametrize(("protocol", "closes"), [("v5.channel.k8s.io", True), ("v4.channel.k8s.io", False)])
def test_an_exec_s_stdin_and_its_end(tmp_path: Path, protocol: str, closes: bool) -> None:
    came: list[bytes] = []

    async def script(socket: web.WebSocketResponse) -> None:
        async for message in socket:
            assert message.type is WSMsgType.BINARY
            came.append(message.data)
            if message.data[:1] == b"\x04":
                break

    async def use(api: Api) -> None:
        stream = await api.exec("p", "c", ("cat",))
        assert stream.half_closes is closes
        await stream.write(b"x" * 40000)
        await stream.close_stdin()
        await stream.resize(24, 80)
        assert await stream.frame() is None
        with pytest.raises(BrokenPipeError):
            await stream.write(b"late" * 1_000_000)
        stream.close()

    asyncio.run(against(tmp_path, serving(script, protocol, []), use))
    assert b"".join(one[1:] for one in came if one[0] == 0) == b"x" * 40000
    assert (b"\xff\x00" in came) is closes
    assert json.loads(came[-1][1:]) == {"Width": 80, "Height": 24}


def test_who_does_not_read_stalls_the_sender(tmp_path: Path) -> None:
    sent: list[int] = []

    async def script(socket: web.WebSocketResponse) -> None:
        try:
            for _ in range(4000):
                await socket.send_bytes(b"\x01" + bytes(1 << 15))
                sent.append(1)
        except ConnectionError:
            return  # it was let go of

    async def use(api: Api) -> None:
        stream = await api.exec("p", "c", ("yes",))
        before = -1
        while before != len(sent):  # until it stands still
            before = len(sent)
            await asyncio.sleep(0.3)
        assert 0 < len(sent) < 1000
        stream.close()

    asyncio.run(against(tmp_path, serving(script, "v5.channel.k8s.io", []), use))


def test_an_exec_that_is_refused_is_sorted(tmp_path: Path) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response({"message": "pods p not found"}, status=404)

    async def use(api: Api) -> None:
        with pytest.raises(Gone):
            await api.exec("p", "c", ("true",))

    asyncio.run(against(tmp_path, answer, use))


@pytest.mark.parametrize(("status", "code"), [(b'{"status":"Success"}', 0), (json.dumps(FAILED).encode(), 7)])
def test_output_that_was_cut_off_is_a_loss_and_no_kill(tmp_path: Path, status: bytes, code: int) -> None:
    """The API says how the wrapping shell ended, but its last words are missing."""
    asked: list[Any] = []

    async def script(socket: web.WebSocketResponse) -> None:
        marker = [value for key, value in asked[0] if key == "command"][4]
        fields = " ".join(str(number) for number in range(3, 40))
        await socket.send_bytes(b"\x01" + f"\x1e{marker} 7 (sh) {fields}|\x1ebegun".encode())
        await socket.send_bytes(b"\x03" + status)

    async def use(api: Api) -> None:
        async def lost(otherwise: str) -> SandboxLost:
            return SandboxLost(otherwise)

        async def start(asked: Start) -> PodWire:
            boot = Boot(asked)
            return PodWire(await api.exec("p", "c", boot.argv), boot, lost, ())

        process = await Actions(Inside(start, lost=lost), variables=lambda _: {}).start(Exec(("true",)))
        with pytest.raises(SandboxLost, match=f"code {code}, and the end of its output was lost"):
            await process.wait()
        process.release()

    asyncio.run(against(tmp_path, serving(script, "v5.channel.k8s.io", asked), use))
