"""Trajectories: what was done in a sandbox, with the pauses between, as lines of JSON.

`Sandbox` writes one where a recording is asked for, by `excise.record(actions=FILE)` or by the variable EXCISE_RECORD; the
meter runs it again as a workload. No value of a secret is ever in it.
"""

import enum
import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, cast

import msgspec

from excise.action import Action, Command, End, Observation
from excise.clock import now_ns
from excise.errors import SpecError
from excise.spec import Limits, Network, Spec, Step
from excise.trace import Span

VARIABLE = "EXCISE_RECORD"
"""The file that every sandbox of a process adds its trajectory to."""
HIDDEN = "***"
_SHORT = 8


class Start(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of a Spec, what can be made again from a file: no secrets, and nothing that lies on the recording's host."""

    image: str = "host"
    repo: str | None = None
    deps: str | None = None
    steps: tuple[Step, ...] = ()
    env: Mapping[str, str] = {}
    workdir: str | None = None
    user: str | None = None
    boot: tuple[Command, ...] = ()
    ready: tuple[Command, ...] = ()
    network: Network | None = None
    build_network: Network | None = None
    limits: Limits = Limits()
    snapshot: bool = False
    """It began from a snapshot: what led there is not in these lines."""


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One line: a sandbox's start, an action, or a verb that is no action. Only what is done is needed in one's own file."""

    sandbox: str = ""
    start: Start | None = None
    think_s: float = 0.0
    """From the end of what was done before, or from the start, to the beginning of this."""
    action: Action | None = None
    run: str | tuple[str, ...] | None = None
    """Short for an action: shell text, or a program and its arguments."""
    verb: str | None = None
    """upload, reset, ...: what the lines cannot repeat."""
    exit_code: int | None = None
    """Which the same command must have again; left out where any will do."""
    end: End = End.EXITED
    errno: int | None = None
    """Of a file action that failed."""
    printed: str = ""
    """In a journal: the end of what it printed."""


_file: ContextVar[Path | None] = ContextVar("excise_trajectory", default=None)


@contextmanager
def keeping(path: Path) -> Generator[None]:
    """Sandboxes opened in this context, and in tasks started in it, add their trajectories to `path`."""
    token = _file.set(path)
    try:
        yield
    finally:
        _file.reset(token)


def recorder(sandbox: str, spec: Spec, *, snapshot: bool) -> "Recorder | None":
    """Whoever writes down what is done in this sandbox; None where nobody asked."""
    named = _file.get() or os.environ.get(VARIABLE)
    return Recorder(Path(named), sandbox, spec, snapshot=snapshot) if named else None


class Recorder:
    """Writes one sandbox's trajectory. One write a line: several sandboxes, and processes, may share a file."""

    def __init__(self, path: Path, sandbox: str, spec: Spec, *, snapshot: bool) -> None:
        self._path = path
        self._sandbox = sandbox[:_SHORT]
        # The longest first: one that begins with another would else lose its beginning only.
        self._secrets = sorted((secret.reveal() for secret in spec.secrets.values()), key=len, reverse=True)
        self._before_ns = now_ns()
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._unwritable(error) from None
        state = {name: getattr(spec, name) for name in Start.__struct_fields__ if name != "snapshot"}
        self._write(Line(sandbox=self._sandbox, start=Start(**state, snapshot=snapshot)))

    def acted(self, action: Action, span: Span, seen: Observation | None) -> None:
        """`action` took `span`; None for one that is still running."""
        self._write(self._line(action, span, seen))

    def _line(self, action: Action, span: Span, seen: Observation | None) -> Line:
        line = Line(sandbox=self._sandbox, action=action, think_s=self._pause_s(span))
        if seen is not None:
            code = seen.exit_code if seen.end is End.EXITED and seen.errno is None else None
            line = msgspec.structs.replace(line, end=seen.end, exit_code=code, errno=seen.errno)
        return line

    def did(self, verb: str, span: Span) -> None:
        """Something that is no action took `span`."""
        self._write(Line(sandbox=self._sandbox, verb=verb, think_s=self._pause_s(span)))

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _pause_s(self, span: Span) -> float:
        """Since the end of what came before; actions that run at once have none between them."""
        before_ns, self._before_ns = self._before_ns, max(self._before_ns, span.end_ns)
        return round(max(0, span.start_ns - before_ns) / 1e9, 6)

    def _write(self, line: Line) -> bytes:
        written = msgspec.json.encode(_plain(line, self._secrets)) + b"\n"
        data = memoryview(written)
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            raise self._unwritable(error) from None
        return written

    def _unwritable(self, error: OSError) -> SpecError:
        return SpecError(f"the trajectory cannot be written to {self._path}: {error.strerror}; name another file")


def encode(line: Line) -> bytes:
    """`line` as it is in a file, without what is as usual."""
    return msgspec.json.encode(_plain(line, ())) + b"\n"


def _plain(value: Any, hidden: Sequence[str]) -> Any:
    """Records as dictionaries of what is not as usual, and no secret in any text or bytes."""
    match value:
        case msgspec.Struct():
            tag = {value.__struct_config__.tag_field: value.__struct_config__.tag} if value.__struct_config__.tag_field else {}
            fields = ((one, getattr(value, one.name)) for one in msgspec.structs.fields(value))
            return {**tag, **{one.encode_name: _plain(held, hidden) for one, held in fields if not _usual(one, held)}}
        case str():
            for secret in hidden:
                value = value.replace(secret, HIDDEN) if secret else value
            return value
        case bytes():
            for secret in hidden:
                value = value.replace(secret.encode(), HIDDEN.encode()) if secret else value
            return value
        case enum.Enum():
            return value.value
        case Mapping():
            return {_plain(key, hidden): _plain(held, hidden) for key, held in cast(Mapping[Any, Any], value).items()}
        case tuple() | list():
            return [_plain(one, hidden) for one in cast(Sequence[Any], value)]
        case _:
            return value


def _usual(field: msgspec.structs.FieldInfo, held: Any) -> bool:
    if field.default is not msgspec.NODEFAULT:
        return bool(held == field.default)
    return field.default_factory is not msgspec.NODEFAULT and bool(held == field.default_factory())


def read(path: Path) -> tuple[Line, ...]:
    """The lines of a trajectory file; what is wrong with one is named by its number."""
    try:
        texts = path.read_bytes().splitlines()
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}") from None
    decoder = msgspec.json.Decoder(Line)
    lines: list[Line] = []
    for number, text in enumerate(texts, 1):
        if not text.strip():
            continue
        try:
            lines.append(decoder.decode(text))
        except (msgspec.DecodeError, SpecError) as error:
            raise SpecError(f'{path} line {number} is not a trajectory\'s: {error}; one looks like {{"run": "ls"}}') from None
    return tuple(lines)
