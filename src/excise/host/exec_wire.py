"""An exec command's pipes, for the wrapping shell: some tools end late, or hold the pipes of what they leave behind."""

from excise.action import Exit
from excise.errors import SandboxLost, SpecError
from excise.guestless.inside import STDERR
from excise.host.process import HostProcess


class CommandWire:
    """A `Wire` over a process of this machine."""

    half_closes = True
    exit_code: int | None = None
    """What a tool ends with is its own code as often as the shell's."""

    def __init__(self, process: HostProcess) -> None:
        self.id = process.id
        self._process = process
        self._events = process.events()

    async def frame(self) -> tuple[int, bytes] | None:
        try:
            event = await anext(self._events, None)
        except SandboxLost:
            return None
        if event is None or isinstance(event, Exit):
            return None
        return (STDERR if event.stream == "stderr" else 1), event.data

    async def write(self, data: bytes) -> None:
        await self._process.write(data)

    async def close_stdin(self) -> None:
        await self._process.close_stdin()

    async def resize(self, rows: int, columns: int) -> None:
        raise SpecError(f"this process has no terminal to make {rows} by {columns}")

    def close(self) -> None:
        self._process.leave()
