"""The shell's compound commands: pipelines, conditions, loops, groups."""

import fnmatch
from typing import TYPE_CHECKING

from excise.substrates.fake.expand import fields, pattern, string
from excise.substrates.fake.pipes import Pipe, ReadEnd, WriteEnd
from excise.substrates.fake.proc import Proc
from excise.substrates.fake.script import (
    Both,
    Case,
    Command,
    For,
    Function,
    Group,
    If,
    Pipeline,
    Redirected,
    Sequence,
    Simple,
    While,
)
from excise.substrates.fake.shell_state import LoopControl

if TYPE_CHECKING:
    from excise.substrates.fake.shell import Shell

TURN_S = 0.001
"""What a turn of a loop takes: a busy loop must neither stop a virtual clock nor hold up a real one."""


async def compound(shell: "Shell", command: Command) -> int:
    """Run it in `shell`; its status."""
    match command:
        case Pipeline():
            return await _pipeline(shell, command)
        case Both(left, operator, right):
            status = await shell.check(left)
            return await shell.execute(right) if (status == 0) == (operator == "&&") else status
        case Group(body, subshell):
            if not subshell:
                return await shell.sequence(body)
            child = await shell.fork(body, shell.proc.files.copy())
            return (await child.wait()).shell
        case If(condition, then, otherwise):
            if await shell.check(condition) == 0:
                return await shell.sequence(then)
            return await shell.execute(otherwise) if otherwise is not None else 0
        case While():
            return await _while(shell, command)
        case For():
            return await _for(shell, command)
        case Case():
            return await _case(shell, command)
        case Function(name, body):
            shell.memory.functions[name] = body
            return 0
        case Redirected(inner, redirects):
            async with shell.redirected(redirects):
                return await shell.execute(inner)
        case Simple() | Sequence():
            return await shell.execute(command)


async def _case(shell: "Shell", choice: Case) -> int:
    value = await string(choice.word, shell)
    for shapes, body in choice.branches:
        for shape in shapes:
            if fnmatch.fnmatchcase(value, await pattern(shape, shell)):
                return await shell.sequence(body)
    return 0


async def _pipeline(shell: "Shell", pipeline: Pipeline) -> int:
    if len(pipeline.commands) == 1:
        return int(not await shell.check(pipeline.commands[0]))
    children: list[Proc] = []
    source = shell.proc.files.get(0)
    for n, command in enumerate(pipeline.commands):
        files = shell.proc.files.copy()
        files.put(0, source)
        if n + 1 < len(pipeline.commands):
            pipe = Pipe()
            files.put(1, WriteEnd(pipe))
            source = ReadEnd(pipe)
        children.append(await shell.fork(command, files))
    statuses = [(await child.wait()).shell for child in children]
    return int(not statuses[-1]) if pipeline.negated else statuses[-1]


async def _while(shell: "Shell", loop: While) -> int:
    status = 0
    shell.loops += 1
    try:
        while True:
            if (await shell.check(loop.condition) == 0) == loop.until:
                return status
            try:
                status = await shell.sequence(loop.body)
            except LoopControl as control:
                if not _goes_on(shell, control):
                    return 0
            await shell.proc.compute(TURN_S)
    finally:
        shell.loops -= 1


async def _for(shell: "Shell", loop: For) -> int:
    status = 0
    shell.loops += 1
    try:
        for value in shell.arguments if loop.words is None else await fields(loop.words, shell):
            shell.assign(loop.name, value)
            try:
                status = await shell.sequence(loop.body)
            except LoopControl as control:
                if not _goes_on(shell, control):
                    return 0
    finally:
        shell.loops -= 1
    return status


def _goes_on(shell: "Shell", control: LoopControl) -> bool:
    if control.depth > 1 and shell.loops > 1:
        raise LoopControl(control.depth - 1, control.again)
    return control.again
