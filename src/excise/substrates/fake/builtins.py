"""What the pretend shell does itself: the commands that change the shell, and a few that need no process of their own."""

import errno
import posixpath
import re
from collections.abc import Mapping

from excise.substrates.fake.files import Directory, refusal
from excise.substrates.fake.launch import become, find_program
from excise.substrates.fake.proc import Proc, Program
from excise.substrates.fake.programs import PROGRAMS
from excise.substrates.fake.programs.voice import signal_number
from excise.substrates.fake.shell import Builtin, Shell
from excise.substrates.fake.shell_state import Leave, LoopControl, Memory, Return, remembering
from excise.substrates.fake.special import absolute, node_at, open_path

_NO_PROCESS = ("echo", "printf", "test", "[", "true", "false", "pwd", "kill")


async def _nothing(shell: Shell, argv: list[str]) -> int:
    return 0


async def _cd(shell: Shell, argv: list[str]) -> int:
    target = argv[1] if len(argv) > 1 else shell.look_up("HOME") or "/"
    path = posixpath.normpath(absolute(shell.proc, target))
    try:
        node = node_at(shell.proc, path)
        if not isinstance(node, Directory):
            raise refusal(errno.ENOTDIR)
        shell.proc.who.check(node, 1)
    except OSError:
        await shell.complain(f"cd: can't cd to {target}")
        return 2
    shell.proc.cwd = path
    shell.memory.variables["PWD"] = path
    return 0


async def _exit(shell: Shell, argv: list[str]) -> int:
    raise Leave(_code(shell, argv))


async def _return(shell: Shell, argv: list[str]) -> int:
    raise Return(_code(shell, argv))


def _code(shell: Shell, argv: list[str]) -> int:
    return (int(argv[1]) if argv[1].isdigit() else 2) & 0xFF if len(argv) > 1 else shell.memory.status


async def _break(shell: Shell, argv: list[str]) -> int:
    if shell.loops:
        raise LoopControl(int(argv[1]) if len(argv) > 1 else 1, argv[0] == "continue")
    return 0


async def _export(shell: Shell, argv: list[str]) -> int:
    for word in argv[1:]:
        name, equals, value = word.partition("=")
        if equals:
            shell.assign(name, value)
        shell.memory.exported.add(name)
    return 0


async def _unset(shell: Shell, argv: list[str]) -> int:
    for name in argv[1:]:
        shell.memory.variables.pop(name, None)
        shell.memory.functions.pop(name, None)
        shell.memory.exported.discard(name)
    return 0


async def _set(shell: Shell, argv: list[str]) -> int:
    words = argv[1:]
    while words and re.fullmatch(r"[-+][a-z]+", words[0]) and words[0] != "--":
        option = words.pop(0)
        if "e" in option:
            shell.memory.stops_on_error = option[0] == "-"
    if words:
        shell.arguments = words[1:] if words[0] == "--" else words
    return 0


async def _shift(shell: Shell, argv: list[str]) -> int:
    count = int(argv[1]) if len(argv) > 1 else 1
    if count > len(shell.arguments):
        return 1
    shell.arguments = shell.arguments[count:]
    return 0


async def _eval(shell: Shell, argv: list[str]) -> int:
    return await shell.run(" ".join(argv[1:]))


async def _source(shell: Shell, argv: list[str]) -> int:
    stream = open_path(shell.proc, argv[1])
    pieces: list[bytes] = []
    while piece := await stream.read(1 << 16):
        pieces.append(piece)
    return await shell.run(b"".join(pieces).decode("utf-8", "surrogateescape"))


async def _exec(shell: Shell, argv: list[str]) -> int:
    program = find_program(shell.proc, argv[1], shell.look_up("PATH") or "")
    variables = shell.memory.variables
    env = {name: variables[name] for name in sorted(shell.memory.exported) if name in variables}
    shell.replaced = True
    raise Leave(await become(shell.proc, program, argv[1:], env))


async def _trap(shell: Shell, argv: list[str]) -> int:
    words = argv[2:] if argv[1:2] == ["--"] else argv[1:]
    if not words:
        return 0
    action, names = (words[0], words[1:]) if len(words) > 1 else ("-", words)
    proc, traps = shell.proc, shell.memory.traps
    for name in names:
        number = 0 if name in ("EXIT", "0") else signal_number(name)
        proc.ignored.discard(number)
        proc.caught.discard(number)
        traps.pop(number, None)
        if action == "":
            proc.ignored.add(number)
        elif action != "-":
            traps[number] = action
            proc.caught.add(number)
    return 0


async def _wait(shell: Shell, argv: list[str]) -> int:
    wanted = [int(word) for word in argv[1:] if word.isdigit()]
    children = [child for child in shell.children if not wanted or child.pid in wanted]
    status = 127 if wanted and not children else 0
    for child in children:
        while child.status is None:
            if shell.proc.pending:
                return 128 + shell.proc.pending[0]
            await shell.proc.machine.changed.wait()
        status = child.status.shell if wanted else 0
    await shell.proc.gate()
    return status


async def _read(shell: Shell, argv: list[str]) -> int:
    names = [word for word in argv[1:] if not word.startswith("-")] or ["REPLY"]
    line = bytearray()
    while (byte := await shell.proc.read(0, 1)) not in (b"", b"\n"):
        line += byte
    values = line.decode("utf-8", "surrogateescape").strip().split(None, len(names) - 1)
    for n, name in enumerate(names):
        shell.assign(name, values[n] if n < len(values) else "")
    return 0 if byte else 1


async def _umask(shell: Shell, argv: list[str]) -> int:
    if len(argv) > 1:
        shell.proc.umask = int(argv[1], 8)
    else:
        await shell.proc.write(1, b"%04o\n" % shell.proc.umask)
    return 0


async def _command(shell: Shell, argv: list[str]) -> int:
    if argv[1:2] != ["-v"]:
        await shell.complain("command: only -v is here")
        return 2
    name = argv[2]
    if name not in BUILTINS and name not in shell.memory.functions:
        try:
            find_program(shell.proc, name, shell.look_up("PATH") or "")
        except OSError:
            return 127
    await shell.proc.write(1, f"{name}\n".encode())
    return 0


def _inside(program: Program) -> Builtin:
    async def builtin(shell: Shell, argv: list[str]) -> int:
        return await program(shell.proc, argv)

    return builtin


BUILTINS: Mapping[str, Builtin] = {
    **{name: _inside(PROGRAMS[name]) for name in _NO_PROCESS},
    ":": _nothing,
    ".": _source,
    "break": _break,
    "cd": _cd,
    "command": _command,
    "continue": _break,
    "eval": _eval,
    "exec": _exec,
    "exit": _exit,
    "export": _export,
    "local": _export,
    "read": _read,
    "return": _return,
    "set": _set,
    "shift": _shift,
    "trap": _trap,
    "umask": _umask,
    "unset": _unset,
    "wait": _wait,
}


async def sh(proc: Proc, argv: list[str]) -> int:
    """`sh [-c script [name [argument ...]]] [file]`, and `bash`, which is the same here."""
    words = argv[1:]
    stops = False
    while words and re.fullmatch(r"-[a-z]+", words[0]) and "c" not in words[0]:
        stops = stops or "e" in words.pop(0)
    if words and words[0].startswith("-"):
        text, name, arguments = words[1], words[2] if len(words) > 2 else argv[0], words[3:]
    elif words:
        name, arguments = words[0], words[1:]
        text = (await _all_of(proc, name)).decode("utf-8", "surrogateescape")
    else:
        name, arguments = argv[0], []
        text = (await _all_of(proc, "/dev/stdin")).decode("utf-8", "surrogateescape")
    memory = remembering(proc, name, arguments)
    memory.stops_on_error = stops
    return await Shell(proc, memory, BUILTINS).main(text)


async def _all_of(proc: Proc, path: str) -> bytes:
    stream = open_path(proc, path)
    pieces: list[bytes] = []
    while piece := await stream.read(1 << 16):
        pieces.append(piece)
    return b"".join(pieces)


def new_shell(proc: Proc, memory: Memory | None = None) -> Shell:
    return Shell(proc, memory or remembering(proc, "bash"), BUILTINS)


def programs() -> dict[str, Program]:
    """Every program of the image."""
    return {**PROGRAMS, "sh": sh, "bash": sh, "dash": sh}
