"""HTTP and JSON: the control plane for curl, dashboards and other languages. Every route does what a call of a channel does."""

import asyncio
import contextlib
import logging
import os
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage

from excise.action import Action, Observation, Read, Write
from excise.channel import frames, records
from excise.channel.channel import Channel
from excise.channel.flow import Incoming, Outgoing
from excise.channel.frames import Header
from excise.channel.refusal import refusal
from excise.errors import ExciseError
from excise.server.answers import as_json, denied, described, observation, refused
from excise.server.bodies import CreateBody, RenewBody, ResetBody, SnapBody, secret, unknown
from excise.server.calls import Work, answered
from excise.server.door import Denied
from excise.server.host import Host, Refusal
from excise.server.keys import Key
from excise.server.metrics import exposition
from excise.server.openapi import document
from excise.server.page import page
from excise.server.server import Server
from excise.server.status import status, waterfall

MOST_BODY_BYTES = 16 << 20
BODY_S = 30.0
_log = logging.getLogger("excise.server")
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


def _is_ours(record: logging.LogRecord) -> bool:
    """What is no HTTP is the sender's fault, and answered with 400: it fills no log with our stack."""
    return record.exc_info is None or not isinstance(record.exc_info[1], BadHttpMessage)


def application(server: Server, report: str | None) -> web.Application:
    """`report`: a directory of `excise report`, whose page is shown."""
    app = web.Application(middlewares=[_guarded], client_max_size=MOST_BODY_BYTES)
    app[_SERVER] = server
    logging.getLogger("aiohttp.server").addFilter(_is_ours)
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
    except Denied as why:
        response = denied(why)
    except Refusal as why:
        response = refused(why.refused)
    except web.HTTPRequestEntityTooLarge:
        response = denied(Denied(413, f"a body has at most {MOST_BODY_BYTES} bytes"))
    except web.HTTPException as error:
        response = denied(Denied(error.status, error.reason or "refused"))
        if isinstance(error, web.HTTPMethodNotAllowed):
            response.headers["Allow"] = ", ".join(sorted(error.allowed_methods))
    except (ExciseError, OSError) as error:
        response = refused(refusal(error, "the server"))
    except Exception as error:  # noqa: BLE001 - told and logged: one request is not the server
        _log.exception("%s %s failed", request.method, request.path)
        response = denied(Denied(500, f"this is a fault of the server ({type(error).__name__}); its log has more"))
    return response


async def _body(request: web.Request, type_: Any) -> Any:
    data = await _bytes(request) or b"{}"
    try:
        read = msgspec.json.decode(data, type=type_, dec_hook=secret)
        given = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Denied(400, f"the body cannot be read: {error}") from None
    if (where := unknown(given, msgspec.to_builtins(read, enc_hook=str))) is not None:
        raise Denied(400, f"the body cannot be read: nothing here is called {where}")
    return read


async def _bytes(request: web.Request) -> bytes:
    """A body. Only so many of a key's are on their way at once; others wait as their bytes do."""
    try:
        async with asyncio.timeout(BODY_S), request.app[_SERVER].bodies_of(request[_KEY]):
            return await request.read()
    except TimeoutError:
        raise Denied(408, f"the body did not come in {BODY_S:g} s") from None


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
        return as_json({"status": "ok"})

    async def readiness(self, _: web.Request) -> web.Response:
        self._refuse_while_draining()
        return as_json({"status": "ready"})

    def _refuse_while_draining(self) -> None:
        if self._host.draining:
            raise Denied(503, "the server is being stopped: ask another one, or later", 5.0)

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=exposition(self._server, request[_KEY]), content_type="text/plain")

    async def openapi(self, _: web.Request) -> web.Response:
        return as_json(document())

    async def status(self, request: web.Request) -> web.Response:
        return as_json(status(self._server, request[_KEY], self._began_s))

    async def report(self, _: web.Request) -> web.StreamResponse:
        if self._report is None:
            raise Denied(404, "this server shows no report: start it with --report DIRECTORY")
        return web.FileResponse(self._report)

    async def capabilities(self, request: web.Request) -> web.Response:
        able: records.Able = await self._ask(request, records.Probe())
        return as_json({"address": able.address, "capabilities": msgspec.to_builtins(able.capabilities)})

    # ---- sandboxes

    async def listing(self, request: web.Request) -> web.Response:
        return as_json({"sandboxes": self._host.listed(request[_KEY], {})})

    async def create(self, request: web.Request) -> web.Response:
        self._refuse_while_draining()
        body: CreateBody = await _body(request, CreateBody)
        key: Key = request[_KEY]
        snapshot = None if body.snapshot is None else self._snapshot(key, body.snapshot)
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
        return as_json({"id": made.id}, 201)

    def _snapshot(self, key: Key, id: str) -> Any:
        for taken in self._host.taken(key):
            if taken.id == id:
                return taken
        raise Denied(404, "there is no such snapshot here")

    async def one(self, request: web.Request) -> web.Response:
        held = self._host.find(request[_KEY], request.match_info["id"])
        for listed in self._host.listed(request[_KEY], {}):
            if listed.id == held.id:
                return as_json(listed)
        raise Denied(404, "there is no such sandbox here")

    async def close(self, request: web.Request) -> web.Response:
        await self._ask(request, records.Close(request.match_info["id"]))
        return web.Response(status=204)

    async def act(self, request: web.Request) -> web.Response:
        action: Action = await _body(request, Action)
        seen: records.Seen = await self._ask(request, records.Run(request.match_info["id"], action))
        return as_json(observation(seen.observation))

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
        taken: records.Taken = await self._ask(request, records.Snap(request.match_info["id"], body.keep_s))
        return as_json(described(taken.snapshots[0]), 201)

    async def reset(self, request: web.Request) -> web.Response:
        body: ResetBody = await _body(request, ResetBody)
        snapshot = self._snapshot(request[_KEY], body.snapshot)
        await self._ask(request, records.Reset(request.match_info["id"], snapshot))
        return web.Response(status=204)

    async def waterfall(self, request: web.Request) -> web.Response:
        return as_json(waterfall(self._host, request[_KEY], request.match_info["id"]))

    async def snapshots(self, request: web.Request) -> web.Response:
        return as_json({"snapshots": [described(one) for one in self._host.taken(request[_KEY])]})

    async def discard(self, request: web.Request) -> web.Response:
        snapshot = self._snapshot(request[_KEY], request.match_info["id"])
        await self._ask(request, records.Discard(snapshot))
        return web.Response(status=204)


def _path(request: web.Request) -> str:
    path = request.query.get("path", "")
    if not path:
        raise Denied(400, "?path=FILE says which file")
    return path


def _raise(seen: Observation, path: str) -> None:
    if seen.errno is not None:
        raise OSError(seen.errno, os.strerror(seen.errno), path)
