"""The pretend shell: walks a script's tree inside a process."""

import errno
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from excise.substrates.fake.compound import compound
from excise.substrates.fake.expand import BadExpansion, fields, string
from excise.substrates.fake.launch import become, find_program, redirect, said
from excise.substrates.fake.pipes import Pipe, ReadEnd, WriteEnd
from excise.substrates.fake.proc import Body, Descriptors, Proc
from excise.substrates.fake.script import Command, Group, Pipeline, Redirect, Sequence, Simple, Substitution
from excise.substrates.fake.shell_state import Leave, LoopControl, Memory, Return, Variables
from excise.substrates.fake.special import open_path
from excise.substrates.fake.syntax import BadSyntax, parse

Builtin = Callable[["Shell", list[str]], Awaitable[int]]


class Shell(Variables):
    """One shell process: it runs its script's commands, itself or in children."""

    def __init__(self, proc: Proc, memory: Memory, builtins: "Mapping[str, Builtin]") -> None:
        super().__init__(proc, memory)
        self.builtins = builtins
        self.children: list[Proc] = []
        self.replaced = False
        """`exec` put another program in the shell's place."""
        self.loops = 0
        """How many loops it is in."""
        self._checked = 0

    async def substitute(self, script: Sequence) -> str:
        pipe = Pipe()
        read_end = ReadEnd(pipe)
        files = self.proc.files.copy()
        files.put(1, WriteEnd(pipe))
        child = await self.fork(script, files)
        pieces: list[bytes] = []
        while piece := await pipe.read():
            pieces.append(piece)
        read_end.closed()
        self.memory.status = (await child.wait()).shell
        return b"".join(pieces).replace(b"\0", b"").decode("utf-8", "surrogateescape").rstrip("\n")

    # ---- running

    async def run(self, text: str) -> int:
        """Run a script to its end; `exit` in it raises Leave."""
        try:
            script = parse(text)
        except BadSyntax as error:
            await self.complain(str(error))
            self.memory.status = 2
            return 2
        try:
            return await self.execute(script)
        except LoopControl:
            return 0
        except Return as back:
            self.memory.status = back.code
            return back.code

    async def main(self, text: str) -> int:
        """A whole life: the script, then what it set for its exit."""
        try:
            code = await self.run(text)
        except Leave as leaving:
            code = leaving.code
        if (last := self.memory.traps.pop(0, None)) is not None:
            self.memory.status = code
            try:
                await self.run(last)
            except Leave as leaving:
                code = leaving.code
        return code

    async def complain(self, text: str) -> None:
        await self.proc.write(2, f"{self.memory.name}: {text}\n".encode("utf-8", "surrogateescape"))

    async def execute(self, command: Command, *, last: bool = False) -> int:
        """Run one command. `last` says the process has nothing to do after it, so that a program may take its place."""
        await self.proc.gate()
        try:
            match command:
                case Simple():
                    status = await self._simple(command, last)
                case Sequence():
                    return await self.sequence(command, last=last)
                case _:
                    status = await compound(self, command)
        except BadExpansion as error:
            await self.complain(str(error))
            raise Leave(2) from None
        except OSError as error:
            await self.complain(said(error))
            status = 2
        self.memory.status = status
        await self._run_traps()
        if status and self.memory.stops_on_error and not self._checked and isinstance(command, Simple | Pipeline | Group):
            raise Leave(status)
        return status

    async def sequence(self, sequence: Sequence, *, last: bool = False) -> int:
        status = 0
        for command, background in sequence.items:
            if background:
                files = self.proc.files.copy()
                files.put(0, open_path(self.proc, "/dev/null"))
                child = await self.fork(command, files)
                self.memory.last_background = child.pid
                status = self.memory.status = 0
            else:
                status = await self.execute(command, last=last and command is sequence.items[-1][0])
        return status

    async def check(self, command: Command) -> int:
        """Run a condition: its failure is an answer, which `set -e` does not mind."""
        self._checked += 1
        try:
            return await self.execute(command)
        finally:
            self._checked -= 1

    async def _run_traps(self) -> None:
        while self.proc.pending:
            number = self.proc.pending.pop(0)
            status = self.memory.status
            await self.run(self.memory.traps.get(number, ":"))
            self.memory.status = status

    # ---- simple commands

    async def _simple(self, command: Simple, last: bool) -> int:
        argv = await fields(command.words, self)
        assignments = [(name, await string(word, self)) for name, word in command.assignments]
        if not argv:
            # `x=$(false)` fails as its substitution did; without one, an assignment succeeds.
            substitutes = any(isinstance(part, Substitution) for _, word in command.assignments for part in word)
            status = self.memory.status if substitutes else 0
            for name, value in assignments:
                self.assign(name, value)
            async with self.redirected(command.redirects):
                return status
        body = self.memory.functions.get(argv[0])
        builtin = self.builtins.get(argv[0])
        if body is None and builtin is None:
            return await self._external(argv, assignments, command.redirects, last)
        if argv == ["exec"]:  # only moves descriptors, for good
            await redirect(self, self.proc.files, command.redirects)
            return 0
        async with self.redirected(command.redirects):
            for name, value in assignments:
                self.assign(name, value)
            if body is not None:
                return await self._call(body, argv[1:])
            assert builtin is not None
            return await builtin(self, argv)

    async def _call(self, body: Command, arguments: list[str]) -> int:
        outer, self.arguments = self.arguments, arguments
        try:
            return await self.execute(body)
        except Return as back:
            return back.code
        finally:
            self.arguments = outer

    async def _external(
        self, argv: list[str], assignments: list[tuple[str, str]], redirects: list[Redirect], last: bool
    ) -> int:
        files = self.proc.files.copy()
        try:
            await redirect(self, files, redirects)
            program = find_program(self.proc, argv[0], self.memory.variables.get("PATH", ""))
        except OSError as error:
            files.close()
            if error.filename == argv[0] and error.errno == errno.ENOENT:
                await self._say_to(redirects, f"{argv[0]}: not found")
                return 127
            if error.filename == argv[0]:
                await self._say_to(redirects, said(error))
                return 126
            raise
        env = {name: self.memory.variables[name] for name in sorted(self.memory.exported) if name in self.memory.variables}
        env.update(assignments)
        if last:
            self.proc.files.close()
            self.proc.files = files
            return await become(self.proc, program, argv, env)
        child = await self._spawn(lambda proc: become(proc, program, argv, env), files)
        return (await child.wait()).shell

    async def _say_to(self, redirects: list[Redirect], text: str) -> None:
        """A complaint about a command goes where its errors were sent."""
        async with self.redirected(redirects):
            await self.complain(text)

    async def fork(self, command: Command, files: Descriptors) -> Proc:
        memory = self.memory.copy()
        builtins = self.builtins

        async def body(proc: Proc) -> int:
            shell = Shell(proc, memory, builtins)
            try:
                code = await shell.execute(command, last=True)
            except Leave as leaving:
                code = leaving.code
            except LoopControl:
                code = 0
            last = memory.traps.pop(0, None)
            return await shell.main(last) if last is not None else code

        child = await self._spawn(body, files)
        self.children.append(child)
        return child

    async def _spawn(self, body: Body, files: Descriptors) -> Proc:
        """A child; a shell that cannot have one gives up, as dash does."""
        try:
            return self.proc.machine.spawn(body, files=files, parent=self.proc)
        except OSError:
            await self.complain("Cannot fork")
            raise Leave(2) from None

    # ---- redirections

    @asynccontextmanager
    async def redirected(self, redirects: list[Redirect]) -> AsyncGenerator[None]:
        if not redirects:
            yield
            return
        outer, self.proc.files = self.proc.files, self.proc.files.copy()
        try:
            await redirect(self, self.proc.files, redirects)
            yield
        finally:
            self.proc.files.close()
            self.proc.files = outer
            if self.proc.status is not None:
                outer.close()  # killed meanwhile: what was put aside is closed too
