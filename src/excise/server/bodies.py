"""What the control plane takes and gives as JSON."""

from typing import Annotated, Any

import msgspec

from excise.spec import Secret, Spec

_Deadline = Annotated[float, msgspec.Meta(ge=1, le=3600)]
_Lease = Annotated[float, msgspec.Meta(ge=1, le=7 * 86400)]


class CreateBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What POST /v1/sandboxes takes."""

    spec: Spec = Spec()
    snapshot: str | None = None
    """The id of one of this key's snapshots, instead of a spec."""
    deadline_s: _Deadline = 120.0
    lease_s: _Lease = 600.0
    labels: dict[str, str] = {}
    request_id: str | None = None


class RenewBody(msgspec.Struct, forbid_unknown_fields=True):
    """What POST /v1/sandboxes/{id}/lease takes."""

    lease_s: _Lease


class SnapBody(msgspec.Struct, forbid_unknown_fields=True):
    """What POST /v1/sandboxes/{id}/snapshots takes."""

    keep_s: _Lease | None = None


class ResetBody(msgspec.Struct, forbid_unknown_fields=True):
    """What POST /v1/sandboxes/{id}/reset takes."""

    snapshot: str


class Problem(msgspec.Struct):
    """Why a request was refused."""

    kind: str
    text: str


class Problems(msgspec.Struct):
    """The body of every answer that is no success."""

    error: Problem


class Made(msgspec.Struct):
    """A sandbox that answers."""

    id: str


class SeenFile(msgspec.Struct):
    """A directory's entry."""

    name: str
    kind: str
    size_bytes: int
    mode: int
    mtime_ns: int
    uid: int
    gid: int
    target: str | None


class Seen(msgspec.Struct):
    """What came of an action. Output is given as text and, so that no byte is lost, in base64."""

    ok: bool
    end: str
    exit_code: int | None
    signal: int | None
    stdout: str
    stderr: str
    stdout_base64: str
    stderr_base64: str
    dropped_bytes: int
    guest_ns: int | None
    cpu_ns: int | None
    max_rss_bytes: int | None
    still_running: bool
    session_replaced: bool
    errno: int | None
    files: list[SeenFile]
    parts: list["Seen"]


class Taken(msgspec.Struct):
    """A snapshot."""

    id: str
    parent: str | None
    carries: str
    size_bytes: int


def secret(type_: type, value: Any) -> Any:
    """The one thing of a spec that JSON has no word for."""
    if type_ is Secret and isinstance(value, str):
        return Secret(value)
    raise ValueError(f"no {type_.__name__} is made of this")


def unknown(given: Any, read: Any, path: str = "$") -> str | None:
    """Where `given` says something that `read`, which was made of it, does not hold: nothing is ever ignored."""
    if isinstance(given, dict) and isinstance(read, dict):
        for name, value in given.items():  # pyright: ignore[reportUnknownVariableType]
            where = f"{path}.{name}"
            if name not in read:
                return where
            if (found := unknown(value, read[name], where)) is not None:
                return found
    elif isinstance(given, list) and isinstance(read, list | tuple):
        for at, (value, one) in enumerate(zip(given, read, strict=False)):  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
            if (found := unknown(value, one, f"{path}[{at}]")) is not None:
                return found
    return None
