"""Actions and what is observed of them: frozen records, one tagged union.

An action is data, so that the same value crosses a function call, a socket and a results file.
"""

import enum
import math
from collections.abc import Mapping
from typing import Literal

import msgspec

from excise.errors import SpecError

MEBIBYTE = 1 << 20
_MOST_BYTES = (1 << 63) - 1
_MOST_MODE = 0o7777
_MOST_CELLS = 65535


class Keep(msgspec.Struct, frozen=True):
    """How much of each output stream an Observation holds: its beginning and its end."""

    head_bytes: int = MEBIBYTE
    tail_bytes: int = MEBIBYTE

    def __post_init__(self) -> None:
        _within(_MOST_BYTES, head_bytes=self.head_bytes, tail_bytes=self.tail_bytes)


def _within(most: int, **numbers: int | None) -> None:
    """What the kernel has no number for would else be found out by whoever sends it there, each in its own way."""
    for name, number in numbers.items():
        if number is not None and not 0 <= number <= most:
            raise SpecError(f"{name}={number} is not from 0 to {most}")


KEEP_ALL = Keep(head_bytes=1 << 62, tail_bytes=0)


class Pty(msgspec.Struct, frozen=True):
    """A terminal of this size; stdout and stderr are one stream on it."""

    rows: int = 24
    columns: int = 80

    def __post_init__(self) -> None:
        _within(_MOST_CELLS, rows=self.rows, columns=self.columns)


class _Command(msgspec.Struct, frozen=True, kw_only=True, tag_field="action"):
    """What Exec and Shell share."""

    cwd: str | None = None
    env: Mapping[str, str] = {}
    stdin: bytes = b""
    timeout_s: float | None = None
    user: str | None = None
    pty: Pty | None = None
    merge: bool = False
    keep: Keep = Keep()


class Exec(_Command, frozen=True, tag="exec"):
    """Run a program with these arguments; no shell is involved."""

    argv: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.argv:
            raise SpecError("an Exec needs a program to run: its argv is empty")
        _refuse_nul(*self.argv)
        _refuse_nan(self.timeout_s)


class Shell(_Command, frozen=True, tag="shell"):
    """Run a script with `sh -c`, or in a named, persistent `session` of bash."""

    script: str
    session: str | None = None

    def __post_init__(self) -> None:
        _refuse_nul(self.script)
        _refuse_nan(self.timeout_s)


def _refuse_nul(*texts: str) -> None:
    if any("\0" in text for text in texts):
        raise SpecError("a command cannot hold a NUL byte: no system passes one on; send it by stdin or a file")


def _refuse_nan(timeout_s: float | None) -> None:
    if timeout_s is not None and math.isnan(timeout_s):
        raise SpecError("timeout_s=nan is no duration: give seconds, or None for the sandbox's own")


class _FileAction(msgspec.Struct, frozen=True, tag_field="action"):
    path: str


class Read(_FileAction, frozen=True, tag="read"):
    """The bytes of a file, from `offset`, at most `length` of them: `stdout` of the Observation."""

    offset: int = 0
    length: int | None = None

    def __post_init__(self) -> None:
        _within(_MOST_BYTES, offset=self.offset, length=self.length)


class Write(_FileAction, frozen=True, tag="write"):
    """Replace a file's bytes (or add to them); missing parent directories are made."""

    data: bytes
    mode: int | None = None
    append: bool = False

    def __post_init__(self) -> None:
        _within(_MOST_MODE, mode=self.mode)


class List(_FileAction, frozen=True, tag="list"):
    """The entries of a directory, sorted by name: `files` of the Observation."""


class Stat(_FileAction, frozen=True, tag="stat"):
    """One entry, not following a final symbolic link: `files[0]` of the Observation."""


class Remove(_FileAction, frozen=True, tag="remove"):
    """Remove a file, or with `recursive` a directory and what is in it."""

    recursive: bool = False


class Move(_FileAction, frozen=True, tag="move"):
    """Rename, replacing a file that is there already."""

    target: str


class MakeDir(_FileAction, frozen=True, tag="make_dir"):
    """Make a directory and its parents; one that is there already is fine."""

    mode: int = 0o755

    def __post_init__(self) -> None:
        _within(_MOST_MODE, mode=self.mode)


Command = Exec | Shell
FileAction = Read | Write | List | Stat | Remove | Move | MakeDir


class Batch(msgspec.Struct, frozen=True, tag="batch", tag_field="action"):
    """Several actions in one round trip, in order; `parts` of the Observation answer them."""

    actions: tuple[Command | FileAction, ...]
    stop_on_failure: bool = True


Action = Command | FileAction | Batch


class End(enum.Enum):
    """How an action ended. What the sandbox's own limits did is here; the host's shortage is SandboxLost."""

    EXITED = "exited"
    SIGNALED = "signaled"
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    OUT_OF_DISK = "out_of_disk"
    OUT_OF_PIDS = "out_of_pids"


class FileInfo(msgspec.Struct, frozen=True):
    """One directory entry."""

    name: str
    kind: Literal["file", "directory", "link", "other"]
    size_bytes: int
    mode: int
    mtime_ns: int
    uid: int
    gid: int
    target: str | None = None


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """What came of an action. It is the sandboxed program's doing, never the machinery's."""

    end: End = End.EXITED
    exit_code: int | None = 0
    signal: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    dropped_bytes: int = 0
    guest_ns: int | None = None
    cpu_ns: int | None = None
    max_rss_bytes: int | None = None
    still_running: bool = False
    """The action's main process ended and left others running; they live on."""
    session_replaced: bool = False
    """The session's shell was stuck or gone and a new one stands in its place: cwd and variables are lost."""
    errno: int | None = None
    """Why a file action failed; `Sandbox` raises it as the built-in exception."""
    files: tuple[FileInfo, ...] = ()
    parts: tuple["Observation", ...] = ()

    @property
    def ok(self) -> bool:
        return self.end is End.EXITED and self.exit_code == 0 and self.errno is None and all(p.ok for p in self.parts)

    @property
    def text(self) -> str:
        """What a policy reads: both streams as text, and how it ended where that is not plain success."""
        text = (self.stdout + self.stderr).decode("utf-8", "replace")
        if self.dropped_bytes:
            text += f"\n[{self.dropped_bytes} bytes dropped from the middle]"
        if self.end is End.SIGNALED:
            text += f"\n[killed by signal {self.signal}]"
        elif self.end is not End.EXITED:
            text += f"\n[{self.end.value.replace('_', ' ')}]"
        elif self.exit_code:
            text += f"\n[exit code {self.exit_code}]"
        return text


class Output(msgspec.Struct, frozen=True):
    """A piece of a running process's output, in order within its stream."""

    stream: Literal["stdout", "stderr"]
    data: bytes


class Exit(msgspec.Struct, frozen=True):
    """A process's last event. Its Observation carries no output: that came as events."""

    observation: Observation


Event = Output | Exit
