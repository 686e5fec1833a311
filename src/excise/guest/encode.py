"""Actions as the guest's requests: what they ask for in fields, and what no sandbox could carry out refused."""

import math

from excise.action import Command, Exec, FileAction, List, MakeDir, Move, Read, Remove, Shell, Stat, Write
from excise.errors import SpecError
from excise.guest import wire
from excise.guest.exchange import Request

LONGEST_READ_BYTES = 256 << 20
"""What one Read brings back at most; sandboxed code can make a file of any length, and its bytes lie in our memory."""
_LONGEST_LIST_BYTES = 64 << 20
_LONGEST_STAT_BYTES = 1 << 16
_LONGEST_TIMEOUT_NS = (1 << 63) - 1
_NANOSECONDS = 10**9
_SH = wire.field(wire.TAG_ARG, b"/bin/sh") + wire.field(wire.TAG_ARG, b"-c")


def command(action: Command, *, interactive: bool, terminal: bytes) -> Request:
    """`interactive` leaves stdin open for the caller to write; `terminal` is what a pty's program is told beside its size."""
    fields = [_program(action)]
    if action.env:
        fields += [wire.variable(name, value) for name, value in action.env.items()]
    if action.cwd is not None:
        fields.append(wire.field(wire.TAG_CWD, wire.text(action.cwd)))
    if action.user is not None:
        fields.append(wire.field(wire.TAG_USER, wire.text(action.user)))
    if action.timeout_s is not None and math.isfinite(action.timeout_s):
        # Zero is no time at all, not no limit.
        timeout_ns = max(1, int(min(action.timeout_s * _NANOSECONDS, _LONGEST_TIMEOUT_NS)))
        fields.append(wire.number(wire.TAG_TIMEOUT_NS, timeout_ns))
    flags = wire.FLAG_MERGE if action.merge else 0
    stdin = action.stdin or None
    if action.pty is not None:
        fields.append(wire.number(wire.TAG_ROWS, action.pty.rows) + wire.number(wire.TAG_COLUMNS, action.pty.columns))
        if "TERM" not in action.env:
            fields.append(terminal)
        flags |= wire.FLAG_PTY | wire.FLAG_STDIN
    elif stdin is not None or (interactive and not _in_session(action)):
        flags |= wire.FLAG_STDIN
    return Request(wire.RUN, b"".join(fields), flags, stdin, action.timeout_s)


def _program(action: Command) -> bytes:
    if isinstance(action, Exec):
        return b"".join([wire.field(wire.TAG_ARG, wire.text(word)) for word in action.argv])
    script = wire.text(action.script)
    if action.session is None:
        return _SH + wire.field(wire.TAG_ARG, script)
    _refuse_options(action)
    return wire.field(wire.TAG_SESSION, wire.text(action.session)) + wire.field(wire.TAG_SCRIPT, script)


def _in_session(action: Command) -> bool:
    return isinstance(action, Shell) and action.session is not None


def _refuse_options(action: Shell) -> None:
    """A session has a directory, variables and a user of its own; an action cannot bring others."""
    given = [name for name in ("cwd", "env", "stdin", "user", "pty") if getattr(action, name)]
    if given:
        raise SpecError(f"a session's action takes no {', '.join(given)}: use cd, export or a redirection inside the script")


def file(action: FileAction) -> tuple[Request, int]:
    """The request, and the most bytes that an honest guest answers."""
    path = wire.field(wire.TAG_PATH, wire.text(action.path))
    match action:
        case Read(_, offset, length):
            most = LONGEST_READ_BYTES + 1 if length is None else min(length, LONGEST_READ_BYTES + 1)
            where = wire.number(wire.TAG_OFFSET, offset) + wire.number(wire.TAG_LENGTH, most)
            return _file(wire.FILE_READ, path + where), most
        case Write(_, data, mode, append):
            how = b"" if mode is None else wire.number(wire.TAG_MODE, mode)
            how += wire.number(wire.TAG_FLAG, 1) if append else b""
            return _file(wire.FILE_WRITE, path + how, data), 0
        case List():
            return _file(wire.FILE_LIST, path), _LONGEST_LIST_BYTES
        case Stat():
            return _file(wire.FILE_STAT, path), _LONGEST_STAT_BYTES
        case Remove(_, recursive):
            return _file(wire.FILE_REMOVE, path + (wire.number(wire.TAG_FLAG, 1) if recursive else b"")), 0
        case Move(_, target):
            return _file(wire.FILE_MOVE, path + wire.field(wire.TAG_TARGET, wire.text(target))), 0
        case MakeDir(_, mode):
            return _file(wire.FILE_MAKE_DIR, path + wire.number(wire.TAG_MODE, mode)), 0


def _file(operation: int, fields: bytes, stdin: bytes = b"") -> Request:
    fields = wire.number(wire.TAG_OPERATION, operation) + fields
    return Request(wire.FILE, fields, wire.FLAG_STDIN if stdin else 0, stdin or None)


def untar(path: str) -> Request:
    return _streamed(wire.FILE_UNTAR, wire.field(wire.TAG_PATH, wire.text(path)), wire.FLAG_STDIN)


def tar(path: str) -> Request:
    return _streamed(wire.FILE_TAR, wire.field(wire.TAG_PATH, wire.text(path)), 0)


def connect(port: int) -> Request:
    return _streamed(wire.FILE_CONNECT, wire.number(wire.TAG_PORT, port), wire.FLAG_STDIN | wire.FLAG_STARTED)


def _streamed(operation: int, fields: bytes, flags: int) -> Request:
    return Request(wire.FILE, wire.number(wire.TAG_OPERATION, operation) + fields, flags)
