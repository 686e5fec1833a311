"""The least action on the same path as another, and a substrate that does nothing at all.

The first tells what dispatch costs where no clock runs inside; the second what the instrument itself costs.
"""

from collections.abc import AsyncIterable, AsyncIterator, Mapping

from excise.action import Action, Batch, Command, Exec, MakeDir, Observation, Read, Shell, Stat, Write
from excise.spec import Spec
from excise.substrate import Capabilities, Change, Connection, Handle, Listed, Process, Snapshot, unsupported

TIMEOUT_S = 60.0


def null_of(action: Action) -> Action:
    """An action that takes the path `action` takes and does nothing there. A file is written as a file, not by a command."""
    match action:
        case Exec():
            return Exec(("true",), timeout_s=TIMEOUT_S)
        case Shell(session=None):
            return Exec(("true",), timeout_s=TIMEOUT_S)
        case Shell(session=session):
            return Shell(":", session=session, timeout_s=TIMEOUT_S)
        case Write(path=path):
            return Write(f"{path}.null", b"")
        case Read(path=path):
            return Read(path, length=0)
        case Batch():
            return Batch((Exec(("true",), timeout_s=TIMEOUT_S),))
        case MakeDir():
            return MakeDir(".")
        case _:
            return Stat(".")


class NullSubstrate:
    """Hands out sandboxes that answer at once with nothing."""

    address = "null"

    async def probe(self) -> Capabilities:
        return Capabilities(guest_clock=True)

    async def create(
        self,
        start: Spec | Snapshot,
        *,
        deadline_s: float,
        lease_s: float,
        labels: Mapping[str, str],
        request_id: str,
    ) -> Handle:
        return NullHandle(request_id)

    async def attach(self, id: str) -> Handle:
        raise unsupported(self.address, "attach")

    async def list(self, labels: Mapping[str, str]) -> tuple[Listed, ...]:
        return ()

    async def snapshots(self) -> tuple[Snapshot, ...]:
        raise unsupported(self.address, "snapshots")

    async def discard(self, snapshot: Snapshot) -> None: ...
    async def collect(self) -> tuple[str, ...]:
        return ()

    async def close(self) -> None: ...


class NullHandle:
    """Answers every action with the same empty success."""

    def __init__(self, id: str) -> None:
        self.id = id
        self._answer = Observation(guest_ns=0)

    async def ready(self) -> None: ...
    async def alive(self) -> None: ...
    async def adopt(self, spec: Spec) -> None: ...
    async def run(self, action: Action) -> Observation:
        return self._answer

    async def start(self, action: Command) -> Process:
        raise unsupported("null", "start")

    async def upload(self, path: str, tar: AsyncIterable[bytes]) -> None:
        raise unsupported("null", "upload")

    def download(self, path: str) -> AsyncIterator[bytes]:
        raise unsupported("null", "download")

    async def connect(self, port: int) -> Connection:
        raise unsupported("null", "connect")

    async def snapshot(self, *, keep_s: float | None = None) -> Snapshot:
        raise unsupported("null", "snapshot")

    async def diff(self, since: Snapshot | None, *, contents: bool = False) -> tuple[Change, ...]:
        raise unsupported("null", "diff")

    async def reset(self, snapshot: Snapshot) -> None:
        raise unsupported("null", "reset")

    async def pause(self) -> None:
        raise unsupported("null", "pause")

    async def resume(self) -> None:
        raise unsupported("null", "resume")

    async def renew(self, lease_s: float) -> None: ...
    async def close(self) -> None: ...
