"""A sandbox's journal: its trajectory with what was printed, one file each, where the owner asked for it."""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec

from excise.action import Action, Event, Observation, Output
from excise.errors import SpecError
from excise.looking.names import short
from excise.spec import Spec
from excise.trace import Span
from excise.trajectory import HIDDEN, Line, Recorder

VARIABLE = "EXCISE_JOURNAL"
"""The directory in which every sandbox of a process writes a journal."""
MOST_BYTES = 1 << 16
"""Of one action's output; the end of it, which says more."""
CLOSED = "close"
OUTPUT = "output"


def path_of(directory: Path, id: str) -> Path:
    """Where the sandbox `id` has its journal in `directory`."""
    return directory / f"{re.sub(r'[^A-Za-z0-9._-]', '_', id)}.jsonl"


def with_journal(recorder: Recorder | None, id: str, spec: Spec, *, snapshot: bool) -> Recorder | None:
    """`recorder`, and where EXCISE_JOURNAL is set a journal that passes on to it."""
    named = os.environ.get(VARIABLE)
    if not named:
        return recorder
    directory = Path(named)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SpecError(f"{VARIABLE}={named}: {error.strerror}; name a directory that can be written") from None
    return Journal(path_of(directory.absolute(), id), id, spec, snapshot=snapshot, also=recorder)


def printed_to(recorder: Recorder | None) -> Callable[[Event], None] | None:
    """Whom a started command's output is told to, if a journal is kept."""
    return Heard(recorder).heard if isinstance(recorder, Journal) else None


class Heard:
    """One started command's output on its way to the journal. A secret may come in two pieces: their ends are held back."""

    def __init__(self, journal: "Journal") -> None:
        self._journal = journal
        self._held = {"stdout": b"", "stderr": b""}

    def heard(self, event: Event) -> None:
        """A piece of its output, or its end."""
        if isinstance(event, Output):
            came = self._journal.concealed(self._held[event.stream] + event.data)
            safe = len(came) - self._journal.longest_bytes + 1 if self._journal.longest_bytes else len(came)
            self._held[event.stream] = came[max(0, safe) :]
            self._journal.printed(came[: max(0, safe)])
            return
        for stream in self._held:
            self._journal.printed(self._held[stream])
        self._journal.ended(event.observation)


class Journal(Recorder):
    """A Recorder that keeps what was printed as well, and tells who follows."""

    def __init__(self, path: Path, id: str, spec: Spec, *, snapshot: bool, also: Recorder | None) -> None:
        self.path = path
        self._also = also
        self._followers: set[asyncio.Queue[bytes | None]] = set()
        super().__init__(path, short(id), spec, snapshot=snapshot)

    def acted(self, action: Action, span: Span, seen: Observation | None) -> None:
        if self._also is not None:
            self._also.acted(action, span, seen)
        line = self._line(action, span, seen)
        self._write(line if seen is None else msgspec.structs.replace(line, printed=self._text(seen)))

    def did(self, verb: str, span: Span) -> None:
        if self._also is not None:
            self._also.did(verb, span)
        super().did(verb, span)

    @property
    def longest_bytes(self) -> int:
        """Of the secrets."""
        return max((len(secret.encode()) for secret in self._secrets), default=0)

    def concealed(self, data: bytes) -> bytes:
        """`data` without a secret: before any of it is cut off, which could leave a part of one."""
        for secret in self._secrets:
            data = data.replace(secret.encode(), HIDDEN.encode()) if secret else data
        return data

    def printed(self, data: bytes) -> None:
        """What a started command has printed."""
        if data:
            self._write(Line(sandbox=self._sandbox, verb=OUTPUT, printed=_cut(data).decode("utf-8", "replace")))

    def ended(self, seen: Observation) -> None:
        """How it ended."""
        line = Line(sandbox=self._sandbox, verb=OUTPUT, printed=self._text(seen), end=seen.end, exit_code=seen.exit_code)
        self._write(line)

    def _text(self, seen: Observation) -> str:
        if seen.parts:
            return "".join(map(self._text, seen.parts))
        return _cut(self.concealed(seen.stdout + seen.stderr)).decode("utf-8", "replace")

    def close(self) -> None:
        if self._also is not None:
            self._also.close()
        if self._descriptor >= 0:
            self._write(Line(sandbox=self._sandbox, verb=CLOSED))
        super().close()
        self.end_followers()

    # ---- following

    async def follow(self) -> AsyncIterator[bytes]:
        """What is in the journal, then each line as it is written, until the sandbox is closed."""
        told: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._followers.add(told)
        try:
            yield self.path.read_bytes()  # at once, without a turn of the loop: no line is missed and none comes twice
            while (data := await told.get()) is not None:
                yield data
        finally:
            self._followers.discard(told)

    def end_followers(self) -> None:
        for told in self._followers:
            told.put_nowait(None)

    def _write(self, line: Line) -> bytes:
        data = super()._write(line)
        for told in self._followers:
            told.put_nowait(data)
        return data


def _cut(data: bytes) -> bytes:
    return data if len(data) <= MOST_BYTES else b"[...]\n" + data[-MOST_BYTES:]
