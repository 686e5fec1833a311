"""An error as a record, and as the same error again on the other side."""

from typing import Literal

import msgspec

from excise.errors import (
    CapacityError,
    CreateError,
    ExciseError,
    ReadyTimeout,
    SandboxLost,
    SpecError,
    SubstrateError,
    Unsupported,
)

Kind = Literal["unsupported", "spec", "lost", "capacity", "create", "ready", "substrate", "os", "cancelled", "other"]

_LONGEST = 8192
# The most special first: the first that fits is told.
_KINDS: tuple[tuple[Kind, type[ExciseError]], ...] = (
    ("unsupported", Unsupported),
    ("spec", SpecError),
    ("lost", SandboxLost),
    ("capacity", CapacityError),
    ("create", CreateError),
    ("ready", ReadyTimeout),
    ("substrate", SubstrateError),
)


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """Why not, by who must act."""

    kind: Kind
    text: str
    errno: int | None = None
    path: str | None = None
    retry_s: float | None = None
    """It may be asked again after so long."""


def refusal(error: BaseException, who: str = "its owner") -> Refused:
    """An error as a record. `who` failed, if it is none that anybody expects."""
    for kind, type_ in _KINDS:
        if isinstance(error, type_):
            return Refused(kind, str(error)[:_LONGEST])
    if isinstance(error, OSError):
        path = None if error.filename is None else str(error.filename)
        return Refused("os", error.strerror or str(error), error.errno, path)
    return Refused("other", f"{who} failed: {type(error).__name__}: {error}"[:_LONGEST])


def as_exception(refused: Refused) -> Exception:
    """The error again, on the other side."""
    if refused.kind == "os":
        return OSError(refused.errno, refused.text, refused.path)
    return dict(_KINDS).get(refused.kind, SandboxLost)(refused.text)
