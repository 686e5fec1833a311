"""What who looks in and the owner say to each other: one connection is one verb, its messages are these records.

A message is its length, four bytes, and a record in MessagePack.
"""

import asyncio
import struct
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from excise.action import Action, Command, Event, Observation, Output
from excise.errors import ExciseError, SandboxLost, SpecError, SubstrateError, Unsupported
from excise.substrate import Change

_LENGTH = struct.Struct("<I")
_NO_TEXT = 1
MOST_BYTES = 1 << 28
"""Of one message: a file that is read whole for a patch is one."""


class About(msgspec.Struct, frozen=True, kw_only=True, tag="about"):
    """A live sandbox, as its owner, or its substrate, describes it."""

    id: str
    address: str
    image: str = ""
    age_s: float | None = None
    lease_left_s: float | None = None
    owner_pid: int | None = None
    uid: int | None = None
    labels: Mapping[str, str] = {}
    processes: int | None = None
    memory_bytes: int | None = None
    """Resident, of all its processes; what they share counts for each."""
    kept: bool = False
    """Its command failed, and it waits to be looked at."""
    journal: str | None = None
    """The file its owner writes what is done in it to."""


# ---- asked


class Describe(msgspec.Struct, frozen=True, tag="describe"):
    """Answered by an About."""

    usage: bool = False
    """Count its processes and their memory, too."""


class Run(msgspec.Struct, frozen=True, tag="run"):
    """Answered by a Seen."""

    action: Action


class Start(msgspec.Struct, frozen=True, tag="start"):
    """Answered by Done once it runs, then by Happened until Exited, and by Done when all that it started is dead.

    Data, Resize, Signal and DataEnd may follow it.
    """

    action: Command


class Upload(msgspec.Struct, frozen=True, tag="upload"):
    """Data, then DataEnd, follow it; answered by Done."""

    path: str


class Download(msgspec.Struct, frozen=True, tag="download"):
    """Answered by Data, then DataEnd."""

    path: str


class Diff(msgspec.Struct, frozen=True, tag="diff"):
    """Answered by Changes."""

    contents: bool = False


class Follow(msgspec.Struct, frozen=True, tag="follow"):
    """Answered by Data: the journal as it is, then what is added to it; DataEnd when the sandbox is closed."""


class Close(msgspec.Struct, frozen=True, tag="close"):
    """Answered by Done: nothing of the sandbox is left."""


# ---- in both directions


class Data(msgspec.Struct, frozen=True, tag="data"):
    """A piece of a stream."""

    data: bytes


class DataEnd(msgspec.Struct, frozen=True, tag="data_end"):
    """A stream's end."""


class Resize(msgspec.Struct, frozen=True, tag="resize"):
    """The terminal has another size."""

    rows: int
    columns: int


class Signal(msgspec.Struct, frozen=True, tag="signal"):
    """A signal to the started command."""

    number: int


# ---- answered


class Seen(msgspec.Struct, frozen=True, tag="seen"):
    """What came of an action."""

    observation: Observation


class Happened(msgspec.Struct, frozen=True, tag="output"):
    """A piece of a started command's output."""

    stream: Literal["stdout", "stderr"]
    data: bytes


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    """A started command's end."""

    observation: Observation


class Changes(msgspec.Struct, frozen=True, tag="changes"):
    """What differs from the sandbox's start."""

    changes: tuple[Change, ...]


class Done(msgspec.Struct, frozen=True, tag="done"):
    """It was done, or has begun."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """Why not, by who must act."""

    kind: Literal["spec", "unsupported", "lost", "substrate", "os", "other"]
    text: str
    errno: int | None = None
    path: str | None = None


Asked = Describe | Run | Start | Upload | Download | Diff | Follow | Close | Data | DataEnd | Resize | Signal
Answered = About | Seen | Done | Happened | Exited | Data | DataEnd | Changes | Refused


def happened(event: Event) -> Happened | Exited:
    """A running command's event as a record of its own: those of the seam carry no tag."""
    return Happened(event.stream, event.data) if isinstance(event, Output) else Exited(event.observation)


def refusal(error: Exception) -> Refused:
    """An error as a record."""
    match error:
        case Unsupported():
            return Refused("unsupported", str(error))
        case SpecError():
            return Refused("spec", str(error))
        case SandboxLost():
            return Refused("lost", str(error))
        case SubstrateError():
            return Refused("substrate", str(error))
        case OSError():
            return Refused(
                "os", error.strerror or str(error), error.errno, None if error.filename is None else str(error.filename)
            )
        case _:
            return Refused("other", f"its owner failed: {type(error).__name__}: {error}")


def as_exception(refused: Refused) -> Exception:
    """The error again, on the other side."""
    if refused.kind == "os":
        return OSError(refused.errno, refused.text, refused.path)
    kinds: dict[str, type[ExciseError]] = {
        "spec": SpecError,
        "unsupported": Unsupported,
        "lost": SandboxLost,
        "substrate": SubstrateError,
    }
    return kinds.get(refused.kind, SandboxLost)(refused.text)


async def send(writer: asyncio.StreamWriter, record: msgspec.Struct) -> None:
    """One message; returns when the other side has taken enough of what came before."""
    data = _encoded(record)
    if len(data) > MOST_BYTES:
        raise SpecError(f"{len(data)} bytes are too many to be handed over at once; copy the file out by `excise cp`")
    writer.write(_LENGTH.pack(len(data)) + data)
    await writer.drain()


def _encoded(record: msgspec.Struct) -> bytes:
    try:
        return msgspec.msgpack.encode(record)
    except UnicodeEncodeError:  # a file's name need not be text
        return msgspec.msgpack.encode(_in_bytes(msgspec.to_builtins(record, builtin_types=(bytes,))))


def _in_bytes(value: Any) -> Any:
    """With each string that is no text as its bytes, marked."""
    match value:
        case str() if any("\ud800" <= character <= "\udfff" for character in value):
            return msgspec.msgpack.Ext(_NO_TEXT, value.encode("utf-8", "surrogateescape"))
        case dict():
            return {name: _in_bytes(one) for name, one in value.items()}  # pyright: ignore[reportUnknownVariableType]
        case list() | tuple():
            return [_in_bytes(one) for one in value]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value


def _decoded(data: bytes, type_: Any) -> Any:
    try:
        return msgspec.msgpack.decode(data, type=type_)
    except msgspec.ValidationError:
        value = msgspec.msgpack.decode(data, ext_hook=lambda _, name: bytes(name).decode("utf-8", "surrogateescape"))
        return msgspec.convert(value, type_)


async def _message(reader: asyncio.StreamReader) -> bytes | None:
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > MOST_BYTES:
            return None
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, OSError):
        return None


async def asked(reader: asyncio.StreamReader) -> Asked | None:
    """The next message of who looks in; None when they have hung up, or speak another language."""
    data = await _message(reader)
    try:
        return None if data is None else _decoded(data, Asked)
    except (msgspec.DecodeError, SpecError):
        return None


async def answered(reader: asyncio.StreamReader) -> Answered | None:
    """The next message of the owner; None when it has hung up, or speaks another language."""
    data = await _message(reader)
    try:
        return None if data is None else _decoded(data, Answered)
    except (msgspec.DecodeError, SpecError):
        return None
