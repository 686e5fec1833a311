"""What who looks in and the owner say to each other: one connection is one verb, its messages are these records.

A message is its length, four bytes, and a record in MessagePack.
"""

import asyncio
import struct
from collections.abc import Mapping
from typing import Literal

import msgspec

from excise.action import Action, Command, Event, Observation, Output
from excise.channel.packing import Unpacker, packed
from excise.channel.refusal import Refused
from excise.errors import SpecError
from excise.substrate import Change

_LENGTH = struct.Struct("<I")
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


Asked = Describe | Run | Start | Upload | Download | Diff | Follow | Close | Data | DataEnd | Resize | Signal
Answered = About | Seen | Done | Happened | Exited | Data | DataEnd | Changes | Refused


_asked = Unpacker(Asked)
_answered = Unpacker(Answered)


def happened(event: Event) -> Happened | Exited:
    """A running command's event as a record of its own: those of the seam carry no tag."""
    return Happened(event.stream, event.data) if isinstance(event, Output) else Exited(event.observation)


async def send(writer: asyncio.StreamWriter, record: msgspec.Struct) -> None:
    """One message; returns when the other side has taken enough of what came before."""
    data = packed(record)
    if len(data) > MOST_BYTES:
        raise SpecError(f"{len(data)} bytes are too many to be handed over at once; copy the file out by `excise cp`")
    writer.write(_LENGTH.pack(len(data)) + data)
    await writer.drain()


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
        return None if data is None else _asked(data)
    except (msgspec.DecodeError, SpecError):
        return None


async def answered(reader: asyncio.StreamReader) -> Answered | None:
    """The next message of the owner; None when it has hung up, or speaks another language."""
    data = await _message(reader)
    try:
        return None if data is None else _answered(data)
    except (msgspec.DecodeError, SpecError):
        return None
