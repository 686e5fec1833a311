"""HTTP and JSON: the control plane for curl, dashboards and other languages. Every route does what a call of a channel does."""

import asyncio
import base64
import contextlib
import os
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from excise.action import Action, Observation, Read, Write
from excise.channel import frames, records
from excise.channel.channel import Channel
from excise.channel.flow import Incoming, Outgoing
from excise.channel.frames import Header
from excise.channel.refusal import Refused, refusal
from excise.errors import ExciseError, SpecError
from excise.server.bodies import CreateBody, RenewBody, ResetBody, SnapBody, secret
from excise.server.calls import Work, answered
from excise.server.door import Denied, refusal_body
from excise.server.host import Host, Refusal
from excise.server.keys import Key
from excise.server.metrics import exposition
from excise.server.openapi import document
from excise.server.page import page
from excise.server.server import Server
from excise.server.status import status, waterfall

MOST_BODY_BYTES = 16 << 20
BODY_S = 30.0
_STATUS = {
    "spec": 422,
    "unsupported": 501,
    "lost": 404,
    "capacity": 429,
    "create": 503,
    "ready": 504,
    "substrate": 503,
    "os": 409,
    "cancelled": 499,
    "other": 500,
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_SERVER = web.AppKey("server", Server)
_KEY = "excise.key"
_KEPT = "excise.kept"
_OPEN = frozenset({"/", "/healthz", "/readyz", "/openapi.json"})
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; frame-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class _Alone:
    """A call that no channel carries. Verbs that stream are not asked here: its streams go nowhere."""

    def __init__(self) -> None:
        nowhere = Channel(self, frames.FROM_CLIENT)
        self.number = 0
        self.inner_ns = 0
        self.outgoing = Outgoing(nowhere, 0)
        self.incoming = Incoming(nowhere, 0)
        self.tells: Callable[[records.Told], None] | None = None

    def started(self) -> None:
        """Nobody waits for it; nor for what follows."""

    def received(self, head: Header, payload: bytes) -> None: ...
    def drained(self) -> None: ...
    def broken(self, reason: str) -> None: ...
    def lost(self, reason: str) -> None: ...


def application(server: Server, report: str | None) -> web.Application:
    """`report`: a directory of `excise report`, whose page is shown."""
    app = web.Application(middlewares=[_guarded], client_max_size=MOST_BODY_BYTES)
    app[_SERVER] = server
    routes = _Routes(server, report)
    app.add_routes(
        [
            web.get("/", routes.page),
            web.get("/healthz", routes.health),
            web.get("/readyz", routes.readiness),
            web.get("/metrics", routes.metrics),
            web.get("/openapi.json", routes.openapi),
            web.get("/v1/status", routes.status),
            web.get("/v1/report", routes.report),
            web.get("/v1/capabilities", routes.capabilities),
            web.get("/v1/sandboxes", routes.listing),
            web.post("/v1/sandboxes", routes.create),
            web.get("/v1/sandboxes/{id}", routes.one),
            web.delete("/v1/sandboxes/{id}", routes.close),
            web.post("/v1/sandboxes/{id}/actions", routes.act),
            web.get("/v1/sandboxes/{id}/file", routes.read),
            web.put("/v1/sandboxes/{id}/file", routes.write),
            web.post("/v1/sandboxes/{id}/lease", routes.renew),
            web.post("/v1/sandboxes/{id}/snapshots", routes.snap),
            web.post("/v1/sandboxes/{id}/reset", routes.reset),
            web.get("/v1/sandboxes/{id}/waterfall", routes.waterfall),
            web.get("/v1/snapshots", routes.snapshots),
            web.delete("/v1/snapshots/{id}", routes.discard),
        ]
    )
    return app


@web.middleware
async def _guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Keys first, then the body; whatever goes wrong is one JSON object. One request a connection: the door reads heads."""
    async with contextlib.AsyncExitStack() as kept:
        request[_KEPT] = kept
        response = await _answered(request, handler)
        response.headers.update(_HEADERS)
        response.force_close()
        # Sent here: what a key may have in memory counts until its client has taken it.
        with contextlib.suppress(ConnectionError):
            await response.prepare(request)
            await response.write_eof()
    return response


async def _answered(request: web.Request, handler: Handler) -> web.StreamResponse:
    server = request.app[_SERVER]
    try:
        if request.path not in _OPEN:
            kind, _, given = request.headers.get("Authorization", "").partition(" ")
            key = server.key_of(given.strip() if kind.lower() == "bearer" else None)
            if (wait_s := server.rate_of(key).wait_s(asyncio.get_running_loop().time())) > 0:
                raise Denied(429, f"the key {key.name} may make {key.rate:g} calls a second", wait_s)  # noqa: TRY301
            request[_KEY] = key
        response = await handler(request)
    except Denied as denied:
        response = _denied(denied)
    except Refusal as refused:
        response = _refused(refused.refused)
    except web.HTTPRequestEntityTooLarge:
        response = _denied(Denied(413, f"a body has at most {MOST_BODY_BYTES} bytes"))
    except web.HTTPException as error:
        response = _denied(Denied(error.status, error.reason or "refused"))
    except (ExciseError, OSError) as error:
        response = _refused(refusal(error, "the server"))
    return response


def _denied(denied: Denied) -> web.Response:
    response = web.Response(status=denied.status, body=refusal_body(denied.text), content_type="application/json")
    if denied.retry_s is not None:
        response.headers["Retry-After"] = f"{denied.retry_s:g}"
    return response


def _refused(refused: Refused) -> web.Response:
    body = refusal_body(refused.text, refused.kind)
    response = web.Response(status=_STATUS[refused.kind], body=body, content_type="application/json")
    if refused.retry_s is not None:
        response.headers["Retry-After"] = f"{refused.retry_s:g}"
    return response


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(status=status, body=_encode(value), content_type="application/json")


def _encode(value: object) -> bytes:
    """A name that is no text is shown with what of it is none replaced: JSON has no other way."""
    try:
        return msgspec.json.encode(value) + b"\n"
    except UnicodeEncodeError:
        return msgspec.json.encode(_shown(msgspec.to_builtins(value))) + b"\n"


def _shown(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        case dict():
            return {_shown(name): _shown(one) for name, one in value.items()}  # pyright: ignore[reportUnknownVariableType]
        case list():
            return [_shown(one) for one in value]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value


async def _body(request: web.Request, type_: Any) -> Any:
    data = await _bytes(request)
    try:
        return msgspec.json.decode(data or b"{}", type=type_, dec_hook=secret)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Denied(400, f"the body cannot be read: {error}") from None


async def _bytes(request: web.Request) -> bytes:
    """A body. Only so many of a key's are on their way at once; others wait as their bytes do."""
    try:
        async with asyncio.timeout(BODY_S), request.app[_SERVER].bodies_of(request[_KEY]):
            return await request.read()
    except TimeoutError:
        raise Denied(408, f"the body did not come in {BODY_S:g} s") from None


def observation(seen: Observation) -> dict[str, Any]:
    """As JSON: output as text where it is some, and as base64 in any case, so that no byte is lost."""
    return {
        "ok": seen.ok,
        "end": seen.end.value,
        "exit_code": seen.exit_code,
        "signal": seen.signal,
        "stdout": seen.stdout.decode("utf-8", "replace"),
        "stderr": seen.stderr.decode("utf-8", "replace"),
        "stdout_base64": base64.b64encode(seen.stdout).decode(),
        "stderr_base64": base64.b64encode(seen.stderr).decode(),
        "dropped_bytes": seen.dropped_bytes,
        "guest_ns": seen.guest_ns,
        "cpu_ns": seen.cpu_ns,
        "max_rss_bytes": seen.max_rss_bytes,
        "still_running": seen.still_running,
        "session_replaced": seen.session_replaced,
        "errno": seen.errno,
        "files": [msgspec.to_builtins(one) for one in seen.files],
        "parts": [observation(part) for part in seen.parts],
    }


class _Routes:
    """One method a route."""

    def __init__(self, server: Server, report: str | None) -> None:
        self._server = server
        self._host: Host = server.host
        self._report = report
        self._began_s = time.time()

    async def _ask(self, request: web.Request, asked: records.Asked) -> Any:
        key: Key = request[_KEY]
        verb = type(asked).__name__.lower()
        try:
            answer = answered(Work(self._host, key, _Alone()), self._server.budget_of(key), asked)
            value = await request[_KEPT].enter_async_context(answer)
        except Exception as error:
            kind = error.refused.kind if isinstance(error, Refusal) else refusal(error).kind
            self._host.figures.calls[verb, kind] += 1
            raise
        self._host.figures.calls[verb, "ok"] += 1
        return value

    # ---- the server

    async def page(self, _: web.Request) -> web.Response:
        return web.Response(text=page(), content_type="text/html")

    async def health(self, _: web.Request) -> web.Response:
        return _json({"status": "ok"})

    async def readiness(self, _: web.Request) -> web.Response:
        if self._host.draining:
            raise Denied(503, "the server is being stopped", 5.0)
        return _json({"status": "ready"})

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=exposition(self._server, request[_KEY]), content_type="text/plain")

    async def openapi(self, _: web.Request) -> web.Response:
        return _json(document())

    async def status(self, request: web.Request) -> web.Response:
        return _json(status(self._server, request[_KEY], self._began_s))

    async def report(self, _: web.Request) -> web.StreamResponse:
        if self._report is None:
            raise Denied(404, "this server shows no report: start it with --report DIRECTORY")
        return web.FileResponse(self._report)

    async def capabilities(self, request: web.Request) -> web.Response:
        able: records.Able = await self._ask(request, records.Probe())
        return _json({"address": able.address, "capabilities": msgspec.to_builtins(able.capabilities)})

    # ---- sandboxes

    async def listing(self, request: web.Request) -> web.Response:
        return _json({"sandboxes": self._host.listed(request[_KEY], {})})

    async def create(self, request: web.Request) -> web.Response:
        body: CreateBody = await _body(request, CreateBody)
        key: Key = request[_KEY]
        snapshot = None if body.snapshot is None else self._snapshot(key, body.snapshot)
        if not 0 < body.deadline_s <= 3600:
            raise SpecError("deadline_s is above zero, and at most 3600")
        asked = records.Create(
            spec=None if snapshot is not None else body.spec,
            snapshot=snapshot,
            deadline_s=body.deadline_s,
            lease_s=body.lease_s,
            labels=body.labels,
            request_id=body.request_id or secrets.token_hex(16),
        )
        made: records.Made = await self._ask(request, asked)
        try:
            async with asyncio.timeout(body.deadline_s):
                await self._ask(request, records.Ready(made.id))
        except BaseException as error:
            await self._ask(request, records.Close(made.id))
            if isinstance(error, TimeoutError):
                raise Denied(504, f"it was made, and was not ready in {body.deadline_s:g} s") from None
            raise
        return _json({"id": made.id}, 201)

    def _snapshot(self, key: Key, id: str) -> Any:
        for taken in self._host.taken(key):
            if taken.id == id:
                return taken
        raise Denied(404, "there is no such snapshot here")

    async def one(self, request: web.Request) -> web.Response:
        held = self._host.find(request[_KEY], request.match_info["id"])
        for listed in self._host.listed(request[_KEY], {}):
            if listed.id == held.id:
                return _json(listed)
        raise Denied(404, "there is no such sandbox here")

    async def close(self, request: web.Request) -> web.Response:
        await self._ask(request, records.Close(request.match_info["id"]))
        return web.Response(status=204)

    async def act(self, request: web.Request) -> web.Response:
        action: Action = await _body(request, Action)
        seen: records.Seen = await self._ask(request, records.Run(request.match_info["id"], action))
        return _json(observation(seen.observation))

    async def read(self, request: web.Request) -> web.Response:
        seen: records.Seen = await self._ask(request, records.Run(request.match_info["id"], Read(_path(request))))
        _raise(seen.observation, _path(request))
        return web.Response(body=seen.observation.stdout, content_type="application/octet-stream")

    async def write(self, request: web.Request) -> web.Response:
        path = _path(request)
        self._host.find(request[_KEY], request.match_info["id"])
        data = await _bytes(request)
        seen: records.Seen = await self._ask(request, records.Run(request.match_info["id"], Write(path, data)))
        _raise(seen.observation, path)
        return web.Response(status=204)

    async def renew(self, request: web.Request) -> web.Response:
        body: RenewBody = await _body(request, RenewBody)
        await self._ask(request, records.Renew(request.match_info["id"], body.lease_s))
        return web.Response(status=204)

    async def snap(self, request: web.Request) -> web.Response:
        body: SnapBody = await _body(request, SnapBody)
        if body.keep_s is not None and not 0 < body.keep_s <= 7 * 86400:
            raise SpecError("keep_s is above zero, and at most a week")
        taken: records.Taken = await self._ask(request, records.Snap(request.match_info["id"], body.keep_s))
        return _json(_described(taken.snapshots[0]), 201)

    async def reset(self, request: web.Request) -> web.Response:
        body: ResetBody = await _body(request, ResetBody)
        snapshot = self._snapshot(request[_KEY], body.snapshot)
        await self._ask(request, records.Reset(request.match_info["id"], snapshot))
        return web.Response(status=204)

    async def waterfall(self, request: web.Request) -> web.Response:
        return _json(waterfall(self._host, request[_KEY], request.match_info["id"]))

    async def snapshots(self, request: web.Request) -> web.Response:
        return _json({"snapshots": [_described(one) for one in self._host.taken(request[_KEY])]})

    async def discard(self, request: web.Request) -> web.Response:
        snapshot = self._snapshot(request[_KEY], request.match_info["id"])
        await self._ask(request, records.Discard(snapshot))
        return web.Response(status=204)


def _described(snapshot: Any) -> dict[str, Any]:
    return {"id": snapshot.id, "parent": snapshot.parent, "carries": snapshot.carries, "size_bytes": snapshot.size_bytes}


def _path(request: web.Request) -> str:
    path = request.query.get("path", "")
    if not path:
        raise Denied(400, "?path=FILE says which file")
    return path


def _raise(seen: Observation, path: str) -> None:
    if seen.errno is not None:
        raise OSError(seen.errno, os.strerror(seen.errno), path)
