"""What the control plane answers, as HTTP: JSON for whoever asked, and why something was refused."""

import base64
from typing import Any

import msgspec
from aiohttp import web

from excise.action import Observation
from excise.channel.refusal import Refused
from excise.server.door import Denied, refusal_body

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


def denied(why: Denied) -> web.Response:
    response = web.Response(status=why.status, body=refusal_body(why.text), content_type="application/json")
    if why.retry_s is not None:
        response.headers["Retry-After"] = f"{why.retry_s:g}"
    return response


def refused(why: Refused) -> web.Response:
    body = refusal_body(why.text, why.kind)
    response = web.Response(status=_STATUS[why.kind], body=body, content_type="application/json")
    if why.retry_s is not None:
        response.headers["Retry-After"] = f"{why.retry_s:g}"
    return response


def as_json(value: object, status: int = 200) -> web.Response:
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


def described(snapshot: Any) -> dict[str, Any]:
    return {"id": snapshot.id, "parent": snapshot.parent, "carries": snapshot.carries, "size_bytes": snapshot.size_bytes}
