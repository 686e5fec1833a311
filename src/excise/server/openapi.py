"""The control plane's OpenAPI document, made from the records that the routes themselves read and write."""

from typing import Any

import msgspec

from excise.action import Action
from excise.server.bodies import CreateBody, Made, Problems, RenewBody, ResetBody, Seen, SnapBody, Taken
from excise.spec import Secret
from excise.substrate import Listed

_JSON = "application/json"
_TEMPLATE = "#/components/schemas/{name}"
_ID = {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
_PATH = {"name": "path", "in": "query", "required": True, "schema": {"type": "string", "minLength": 1}}
_ANY = {"type": "object"}
_BASE64 = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"


def document() -> dict[str, Any]:
    """Complete: every route, every status, every body."""
    types = (CreateBody, RenewBody, SnapBody, ResetBody, Action, Made, Seen, Taken, Listed, Problems)
    schemas, components = msgspec.json.schema_components(types, schema_hook=_hook, ref_template=_TEMPLATE)
    named = dict(zip(types, schemas, strict=True))
    for schema in components.values():
        _complete(schema)
    listed = {
        "type": "object",
        "required": ["sandboxes"],
        "properties": {"sandboxes": {"type": "array", "items": named[Listed]}},
    }
    taken = {"type": "object", "required": ["snapshots"], "properties": {"snapshots": {"type": "array", "items": named[Taken]}}}
    raw = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    one = "/v1/sandboxes/{id}"
    paths: dict[str, dict[str, Any]] = {
        "/": {"get": _open("page", "The page.", {"200": _content("The page.", {"text/html": {"schema": {"type": "string"}}})})},
        "/healthz": {"get": _open("health", "Whether it lives.", {"200": _answer("It does.", _ANY)})},
        "/readyz": {
            "get": _open(
                "readiness",
                "Whether it takes new sandboxes.",
                {"200": _answer("It does.", _ANY), "503": _answer("It is being stopped.", named[Problems])},
            )
        },
        "/openapi.json": {"get": _open("openapi", "This document.", {"200": _answer("It.", _ANY)})},
        "/metrics": {
            "get": _route("metrics", "Prometheus metrics.", _content("Text.", {"text/plain": {"schema": {"type": "string"}}}))
        },
        "/v1/status": {"get": _route("status", "What the page shows.", _answer("Figures, and this key's sandboxes.", _ANY))},
        "/v1/report": {
            "get": _route(
                "report", "The latest report, as a page.", _content("HTML.", {"text/html": {"schema": {"type": "string"}}})
            )
        },
        "/v1/capabilities": {"get": _route("capabilities", "What the served substrate can do.", _answer("As data.", _ANY))},
        "/v1/sandboxes": {
            "get": _route("list", "This key's sandboxes.", _answer("All of them.", listed)),
            "post": _route(
                "create",
                "Make a sandbox, and wait until it is ready.",
                _answer("It is.", named[Made]),
                "201",
                body=named[CreateBody],
                needed=False,
            ),
        },
        one: {
            "get": _route("one", "One sandbox.", _answer("Its age, labels and lease.", named[Listed]), parameters=[_ID]),
            "delete": _route("close", "Close it; nothing of it is left.", _nothing(), "204", parameters=[_ID]),
        },
        f"{one}/actions": {
            "post": _route(
                "act",
                "Run one action, or a batch.",
                _answer("What came of it.", named[Seen]),
                body=named[Action],
                parameters=[_ID],
            )
        },
        f"{one}/file": {
            "get": _route("read", "A file's bytes.", _content("They.", raw), parameters=[_ID, _PATH]),
            "put": _route("write", "Replace a file's bytes.", _nothing(), "204", parameters=[_ID, _PATH])
            | {"requestBody": {"content": raw}},
        },
        f"{one}/lease": {
            "post": _route("renew", "Move its lease's end.", _nothing(), "204", body=named[RenewBody], parameters=[_ID])
        },
        f"{one}/snapshots": {
            "post": _route(
                "snapshot",
                "Take a snapshot.",
                _answer("It.", named[Taken]),
                "201",
                body=named[SnapBody],
                needed=False,
                parameters=[_ID],
            )
        },
        f"{one}/reset": {
            "post": _route("reset", "Go back to a snapshot.", _nothing(), "204", body=named[ResetBody], parameters=[_ID])
        },
        f"{one}/waterfall": {
            "get": _route("waterfall", "What was done in it, and when.", _answer("Its verbs.", _ANY), parameters=[_ID])
        },
        "/v1/snapshots": {"get": _route("snapshots", "This key's snapshots.", _answer("All of them.", taken))},
        "/v1/snapshots/{id}": {"delete": _route("discard", "Give one's storage back.", _nothing(), "204", parameters=[_ID])},
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Excise",
            "version": "1",
            "description": "Sandboxes for rollouts: the control plane of `excise serve`.",
        },
        "security": [{"key": []}],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }


def _hook(type_: type) -> dict[str, Any]:
    if type_ is Secret:
        return {"type": "string", "format": "password"}
    raise NotImplementedError


def _complete(schema: Any) -> None:
    """What msgspec's schemas leave out and our routes hold to: no name that is not there, bytes as base64."""
    if isinstance(schema, list):
        for one in schema:  # pyright: ignore[reportUnknownVariableType]
            _complete(one)
    elif isinstance(schema, dict):
        if "properties" in schema:
            schema["additionalProperties"] = False
        if schema.get("contentEncoding") == "base64":  # pyright: ignore[reportUnknownMemberType]
            schema["pattern"] = _BASE64
        for one in schema.values():  # pyright: ignore[reportUnknownVariableType]
            _complete(one)


def _content(words: str, content: dict[str, Any]) -> dict[str, Any]:
    return {"description": words, "content": content}


def _answer(words: str, schema: dict[str, Any]) -> dict[str, Any]:
    return _content(words, {_JSON: {"schema": schema}})


def _nothing() -> dict[str, Any]:
    return {"description": "It was done."}


def _open(name: str, words: str, responses: dict[str, Any]) -> dict[str, Any]:
    """A route that needs no key."""
    return {"operationId": name, "summary": words, "security": [], "responses": responses}


def _route(
    name: str,
    words: str,
    answer: dict[str, Any],
    status: str = "200",
    *,
    body: dict[str, Any] | None = None,
    needed: bool = True,
    parameters: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    refused = {"description": "Why not.", "content": {_JSON: {"schema": {"$ref": "#/components/schemas/Problems"}}}}
    codes = ("400", "401", "403", "404", "408", "409", "413", "422", "429", "431", "500", "501", "503", "504")
    route: dict[str, Any] = {
        "operationId": name,
        "summary": words,
        "responses": {status: answer} | dict.fromkeys(codes, refused),
    }
    if parameters:
        route["parameters"] = parameters
    if body is not None:
        route["requestBody"] = {"required": needed, "content": {_JSON: {"schema": body}}}
    return route
