"""What a client asks of a server and what it is answered: the seam's verbs as records."""

from collections.abc import Mapping

import msgspec

from excise.action import Action, Command, Observation
from excise.channel.packing import Unpacker
from excise.channel.refusal import Refused
from excise.spec import Spec
from excise.substrate import Capabilities, Change, Listed, Snapshot

# ---- of the substrate


class Probe(msgspec.Struct, frozen=True, tag="probe"):
    """Answered by Able."""


class Create(msgspec.Struct, frozen=True, tag="create", kw_only=True):
    """Answered by Made. Exactly one of `spec` and `snapshot` is there."""

    spec: Spec | None = None
    snapshot: Snapshot | None = None
    deadline_s: float
    lease_s: float
    labels: Mapping[str, str]
    request_id: str


class Attach(msgspec.Struct, frozen=True, tag="attach"):
    """Answered by Made."""

    id: str


class Look(msgspec.Struct, frozen=True, tag="list"):
    """Answered by Found."""

    labels: Mapping[str, str]


class Snapshots(msgspec.Struct, frozen=True, tag="snapshots"):
    """Answered by Taken."""


class Discard(msgspec.Struct, frozen=True, tag="discard"):
    """Answered by Done."""

    snapshot: Snapshot


class Collect(msgspec.Struct, frozen=True, tag="collect"):
    """Answered by Names."""


# ---- of one sandbox


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Answered by Done."""

    id: str


class Alive(msgspec.Struct, frozen=True, tag="alive"):
    """Answered by Done."""

    id: str


class Adopt(msgspec.Struct, frozen=True, tag="adopt"):
    """Answered by Done."""

    id: str
    spec: Spec


class Run(msgspec.Struct, frozen=True, tag="run"):
    """Answered by Seen."""

    id: str
    action: Action


class Start(msgspec.Struct, frozen=True, tag="start"):
    """STARTED once it runs, DATA until it ends; answered by Seen. DATA and EOF are its stdin; Resize and Signal may be told."""

    id: str
    action: Command


class Kill(msgspec.Struct, frozen=True, tag="kill"):
    """What a started command that has ended left running; `process` is the number of its call. Answered by Done."""

    id: str
    process: int


class Upload(msgspec.Struct, frozen=True, tag="upload"):
    """DATA, then EOF, follow it; answered by Done."""

    id: str
    path: str


class Download(msgspec.Struct, frozen=True, tag="download"):
    """DATA, then answered by Done."""

    id: str
    path: str


class Connect(msgspec.Struct, frozen=True, tag="connect"):
    """STARTED, then DATA in both directions; answered by Done when either side has ended it."""

    id: str
    port: int


class Snap(msgspec.Struct, frozen=True, tag="snapshot"):
    """Answered by Taken, of one."""

    id: str
    keep_s: float | None = None


class Reset(msgspec.Struct, frozen=True, tag="reset"):
    """Answered by Done."""

    id: str
    snapshot: Snapshot


class Diff(msgspec.Struct, frozen=True, tag="diff"):
    """Answered by Changes."""

    id: str
    since: Snapshot | None = None
    contents: bool = False


class Pause(msgspec.Struct, frozen=True, tag="pause"):
    """Answered by Done."""

    id: str


class Resume(msgspec.Struct, frozen=True, tag="resume"):
    """Answered by Done."""

    id: str


class Renew(msgspec.Struct, frozen=True, tag="renew"):
    """Answered by Done."""

    id: str
    lease_s: float


class Close(msgspec.Struct, frozen=True, tag="close"):
    """Answered by Done: nothing of the sandbox is left."""

    id: str


# ---- told within a call


class Resize(msgspec.Struct, frozen=True, tag="resize"):
    """The terminal has another size."""

    rows: int
    columns: int


class Signal(msgspec.Struct, frozen=True, tag="signal"):
    """A signal to the started command."""

    number: int


# ---- answered


class Able(msgspec.Struct, frozen=True, tag="able"):
    """What is served, and what it can do."""

    address: str
    capabilities: Capabilities


class Made(msgspec.Struct, frozen=True, tag="made"):
    """A sandbox."""

    id: str


class Found(msgspec.Struct, frozen=True, tag="found"):
    """Sandboxes of this key."""

    listed: tuple[Listed, ...]


class Taken(msgspec.Struct, frozen=True, tag="taken"):
    """Snapshots of this key."""

    snapshots: tuple[Snapshot, ...]


class Names(msgspec.Struct, frozen=True, tag="names"):
    """What was removed."""

    names: tuple[str, ...]


class Seen(msgspec.Struct, frozen=True, tag="seen"):
    """What came of an action."""

    observation: Observation


class Changes(msgspec.Struct, frozen=True, tag="changes"):
    """What differs."""

    changes: tuple[Change, ...]


class Done(msgspec.Struct, frozen=True, tag="done"):
    """It was done."""


class Long(msgspec.Struct, frozen=True, tag="long"):
    """The record itself is in the call's DATA: so many bytes, within their window. Stands for a call and for an answer."""

    size_bytes: int


OfSubstrate = Probe | Create | Attach | Look | Snapshots | Discard | Collect
OfLife = Ready | Alive | Adopt | Pause | Resume | Renew | Close
OfState = Snap | Reset | Diff
OfStreams = Start | Kill | Upload | Download | Connect
OfSandbox = Run | OfLife | OfState | OfStreams
Asked = OfSubstrate | OfSandbox
Told = Resize | Signal
Value = Able | Made | Found | Taken | Names | Seen | Changes | Done | Refused


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """An answer and where the time went, as durations: no clock crosses the wire."""

    value: Value | Long
    server_ns: int = 0
    """From the call's last byte to this answer's first."""
    inner_ns: int = 0
    """How much of that the substrate behind the server took."""


asked = Unpacker(Asked | Long)
asked_at_length = Unpacker(Asked)
told = Unpacker(Told)
answered = Unpacker(Answer)
value = Unpacker(Value)
