"""How a program comes to run: found on the PATH, given its descriptors, put into a process."""

import errno
import os
import re
from typing import Protocol

from excise.substrates.fake.expand import Scope, string
from excise.substrates.fake.files import File, refusal
from excise.substrates.fake.pipes import Pipe, ReadEnd
from excise.substrates.fake.proc import PROGRAM_BYTES, Descriptors, Proc, Program
from excise.substrates.fake.script import Redirect
from excise.substrates.fake.special import is_runnable, node_at, open_path

MARK = b"#!fake "
"""How a program's file in the image begins; its name among the machine's programs follows."""


def find_program(proc: Proc, name: str, path: str) -> Program:
    """The program execve(2) would run. The OSError's filename is `name` if there is none."""
    places = [name] if "/" in name else [f"{directory}/{name}" for directory in path.split(":") if directory]
    refused = refusal(errno.ENOENT, name)
    for place in places:
        try:
            node = node_at(proc, place)
        except OSError:
            continue
        if isinstance(node, File) and is_runnable(node):
            return _program_in(proc, node, place)
        refused = refusal(errno.EACCES, name)
    raise refused


def _program_in(proc: Proc, node: File, place: str) -> Program:
    programs = proc.machine.programs
    if node.data.startswith(MARK):
        return programs[node.data[len(MARK) :].decode()]
    # Whatever else is executable is taken for a script, as a shell takes it.
    return lambda runner, argv: programs["sh"](runner, ["sh", place, *argv[1:]])


async def become(proc: Proc, program: Program, argv: list[str], env: dict[str, str]) -> int:
    """execve(2): the same process, another program; traps are forgotten, what was ignored stays so."""
    proc.argv = argv
    proc.env = env
    proc.caught.clear()
    proc.memory_bytes = PROGRAM_BYTES
    return await program(proc, argv)


async def redirect(scope: "_Redirecting", files: Descriptors, redirects: list[Redirect]) -> None:
    """Change `files` as the redirections say."""
    for one in redirects:
        target = await string(one.word, scope)
        match one.operator:
            case ">&" | "<&" if target == "-":
                files.drop(one.descriptor)
            case ">&" | "<&":
                if not re.fullmatch(r"\d+", target):
                    raise refusal(errno.EBADF, target)
                files.put(one.descriptor, files.get(int(target)))
            case "<<":
                pipe = Pipe()
                pipe.put(target.encode("utf-8", "surrogateescape"))
                files.put(one.descriptor, ReadEnd(pipe))
            case operator:
                write, truncate = operator != "<", operator in (">", ">|")
                stream = open_path(scope.proc, target, write=write, truncate=truncate, append=operator == ">>")
                files.put(one.descriptor, stream)


class _Redirecting(Scope, Protocol):
    """A shell, as far as redirections go."""

    proc: Proc


def said(error: OSError) -> str:
    """An error as a program prints it."""
    reason = os.strerror(error.errno or 0)
    return f"{error.filename}: {reason}" if error.filename else reason
