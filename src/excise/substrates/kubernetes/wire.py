"""Variables and long arguments for an exec that takes neither: they come on its stdin, and in no log of the API server's."""

import re
import secrets
from typing import TYPE_CHECKING

from excise.guestless.inside import Lost, Start
from excise.guestless.wrapper import MARKER
from excise.substrates.kubernetes.refusals import sentence

if TYPE_CHECKING:
    from excise.substrates.kubernetes.stream import ExecStream

_STDOUT = 1

_LONGEST_IN_URL = 16384
_LINE = 250
"""Characters a line: a terminal takes in 4095 bytes of one, and drops the rest."""
_LONGEST_ECHO_BYTES = 1 << 20

_MARKED = f'{MARKER}=$1; export {MARKER}; shift; exec "$@"'
# What is read is a script of ours, up to a line that cannot be in it. Builtins only, and nothing of it stays set.
_BOOT = r"""
unset EXCISE_TEXT EXCISE_LINE EXCISE_PART
while IFS= read -r EXCISE_LINE && [ "$EXCISE_LINE" != "$1" ]; do EXCISE_TEXT="$EXCISE_TEXT$EXCISE_LINE
"; done
printf '\036%s\036' "$1"
set --
eval "$EXCISE_TEXT"
unset EXCISE_TEXT EXCISE_LINE EXCISE_PART
exec "$@"
"""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NOT_SETTABLE = frozenset({"UID", "EUID", "PPID", "BASHOPTS", "SHELLOPTS", "BASH_VERSINFO"})
"""In some shells: `env` sets them for a program."""
_PLAIN = re.compile(r"[\x20-\x7e]*")


class Boot:
    """What an exec is asked to run, and what goes to its stdin ahead of anything else."""

    def __init__(self, start: Start) -> None:
        self.preamble = b""
        self.word = b""
        """Printed once all of it was read; what comes before is a terminal's echo."""
        if start.env.keys() <= {MARKER} and _fits(start.argv):
            marked = ("sh", "-c", _MARKED, "sh", start.env[MARKER]) if MARKER in start.env else ()
            self.argv = (*marked, *start.argv)
            return
        token = secrets.token_hex(16)
        self.argv = ("sh", "-c", _BOOT, "sh", token)
        self.word = f"\x1e{token}\x1e".encode()
        self.preamble = f"{script(start)}{token}\n".encode("utf-8", "surrogateescape")


def script(start: Start) -> str:
    """Sets the variables, and the positional parameters to the argv. On a terminal: short lines, no key that means anything."""
    lines: list[str] = []
    words: list[str] = []
    for name, value in start.env.items():
        if _NAME.fullmatch(name) and name not in _NOT_SETTABLE:
            lines += [*_part(value, short=start.terminal), f"{name}=$EXCISE_PART; export {name}"]
        else:
            words = [*(words or ["env"]), f"{name}={value}"]
    for word in (*words, *start.argv):
        lines += [*_part(word, short=start.terminal), 'set -- "$@" "$EXCISE_PART"']
    return "".join(f"{line}\n" for line in lines)


def _part(text: str, *, short: bool) -> list[str]:
    """Lines that set EXCISE_PART to `text`."""
    if not short:
        return [f"EXCISE_PART={_quoted(text)}"]
    lines = ["EXCISE_PART="]
    for at in range(0, len(text), _LINE):
        piece = text[at : at + _LINE]
        if _PLAIN.fullmatch(piece):
            lines.append(f"EXCISE_PART=$EXCISE_PART{_quoted(piece)}")
        else:  # the x: a command's output loses its last newlines
            octal = "".join(f"\\{byte:03o}" for byte in piece.encode("utf-8", "surrogateescape"))
            lines += [f"EXCISE_PART=$EXCISE_PART$(printf '{octal}x')", "EXCISE_PART=${EXCISE_PART%x}"]
    return lines


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _fits(argv: tuple[str, ...]) -> bool:
    """Whether it can be part of a URL."""
    try:
        return sum(len(word.encode()) for word in argv) < _LONGEST_IN_URL
    except UnicodeEncodeError:
        return False


class PodWire:
    """An exec stream as guestless takes one: without the boot's echo, and with a broken connection told as a loss."""

    def __init__(self, stream: "ExecStream", boot: Boot, lost: Lost, callers_fault: tuple[str, ...]) -> None:
        """`callers_fault`: what the runtime says of a program that no sandbox could start; all else is the machinery's."""
        self._stream = stream
        self._word = boot.word
        self._echo = b""
        self._lost = lost
        self._callers_fault = callers_fault
        self._began = self._refused = False
        self._closed = False

    @property
    def id(self) -> str:
        return self._stream.id

    @property
    def half_closes(self) -> bool:
        return self._stream.half_closes

    @property
    def exit_code(self) -> int | None:
        return None if self._stream.ending is None else self._stream.ending.exit_code

    async def frame(self) -> tuple[int, bytes] | None:
        while (frame := await self._stream.frame()) is not None:
            channel, data = frame
            if self._word and channel == _STDOUT:
                data = self._after_echo(data)
            if data:
                self._began = True
                return channel, data
        if self._closed:
            return None
        ending = self._stream.ending
        if ending is None:
            raise await self._lost("the connection to a running action broke off")
        if ending.exit_code is not None or self._refused:
            return None
        if self._began or not any(fault in ending.message for fault in self._callers_fault):
            raise await self._lost(f"the action has no end of its own: {sentence(ending.message)}")
        self._refused = True
        return _STDOUT, ending.message.encode()

    def _after_echo(self, data: bytes) -> bytes:
        self._echo = (self._echo + data)[-_LONGEST_ECHO_BYTES:]
        _, word, after = self._echo.partition(self._word)
        if not word:
            return b""
        self._word = self._echo = b""
        return after

    async def write(self, data: bytes) -> None:
        await self._stream.write(data)

    async def close_stdin(self) -> None:
        await self._stream.close_stdin()

    async def resize(self, rows: int, columns: int) -> None:
        await self._stream.resize(rows, columns)

    def close(self) -> None:
        self._closed = True
        self._stream.close()
