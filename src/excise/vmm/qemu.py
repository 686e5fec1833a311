"""One QEMU process: started with sockets that have no name, ended with whoever started it, and asked why it ended."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from typing import Any, TypeVar

from excise.errors import CreateError, SandboxLost
from excise.guest.carrier import SocketCarrier, pair
from excise.handles import finish
from excise.vmm.console import Console
from excise.vmm.qmp import Qmp
from excise.vmm.tools import find, run

T = TypeVar("T")
_WITHOUT_HABITS = ("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot")
# What it never does; should sandboxed code take it over, it finds less to do.
_SANDBOX = ("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny")
_LAST_WORDS_S = 2.0
PROGRAM = "qemu-system-x86_64"
_PACKAGE = "qemu-system-x86"


@cache
def program() -> str:
    return find(PROGRAM, _PACKAGE)


async def version() -> str:
    """Of the QEMU that is here, as `7.2.22`."""
    said = await run(program(), "--version")
    return said.partition("version ")[2].split()[0].rstrip(",(") if "version " in said else said.strip()


def _spawn(arguments: Sequence[str], theirs: list[socket.socket], pass_fds: tuple[int, ...]) -> "subprocess.Popen[bytes]":
    # KILL: nothing it holds outlives it, and what is stopped or stuck must end as well.
    dies_with_us = (find("setpriv", "util-linux"), "--pdeathsig", "KILL")
    return subprocess.Popen(
        [*dies_with_us, program(), *_WITHOUT_HABITS, *_SANDBOX, *arguments, "-mon", "chardev=control,mode=control"],
        pass_fds=(*(end.fileno() for end in theirs), *pass_fds),
        stdin=subprocess.DEVNULL,
        stdout=theirs[1].fileno(),
        stderr=theirs[1].fileno(),  # why it could not begin is for the same reader
        cwd="/",
        start_new_session=True,
    )


class _MachineCarrier(SocketCarrier):
    """A link whose end is told with what the machine's console said: QEMU closes it a moment before it has ended."""

    def __init__(self, sock: socket.socket, machine: "Machine") -> None:
        super().__init__(sock)
        self._machine = machine

    def _over(self, reason: str) -> None:
        ended = self._ended
        self.close()
        told = self._loop.call_later(_LAST_WORDS_S, lambda: ended(reason))
        self._machine.ended.add_done_callback(lambda _: (told.cancel(), ended(self._machine.why())))


class Machine:
    """A QEMU process and its three sockets: its control, its console and, if it was wanted, the link to a guest."""

    def __init__(self, process: "subprocess.Popen[bytes]", console: socket.socket, link: socket.socket | None) -> None:
        self._process = process
        self.pid = process.pid
        self._loop = asyncio.get_running_loop()
        self.console = Console(console)
        self._link = link
        self.qmp: Qmp
        self.ended: asyncio.Future[int] = self._loop.create_future()
        """Its exit status; negative for a signal."""
        self._pidfd = os.pidfd_open(process.pid)
        self._loop.add_reader(self._pidfd, self._exited)
        self.on_end: Callable[[str], None] | None = None
        """Told why, once, if it ends by itself."""

    @classmethod
    async def start(cls, arguments: Sequence[str], *, link: bool = True, pass_fds: tuple[int, ...] = ()) -> "Machine":
        """Run QEMU with `arguments`. Chardevs called `console` and, with `link`, `link` are there for them to use.

        It dies with the thread that this loop runs in: by a signal of the kernel's, so that SIGKILL leaves nothing behind.
        """
        ours: list[socket.socket] = []
        theirs: list[socket.socket] = []
        try:
            for _ in range(3 if link else 2):
                one, other = pair()
                ours.append(one)
                theirs.append(other)
            named = ("control", "console", "link")
            for name, end in zip(named, theirs, strict=False):
                arguments = (*arguments, "-chardev", f"socket,id={name},fd={end.fileno()}")
            process = _spawn(arguments, theirs, pass_fds)
        except BaseException:
            for end in ours:
                end.close()
            raise
        finally:
            for end in theirs:
                end.close()
        machine = cls(process, ours[1], ours[2] if link else None)
        try:
            machine.qmp = await Qmp.open(ours[0])
        except BaseException:
            ours[0].close()
            await finish(machine.close())
            raise
        return machine

    def carrier(self) -> SocketCarrier:
        """What carries the guest's frames; once."""
        assert self._link is not None
        link, self._link = self._link, None
        return _MachineCarrier(link, self)

    # ---- its end

    def _exited(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        status = self._process.wait()
        if not self.ended.done():
            self.ended.set_result(status)
        if self.on_end is not None:
            told, self.on_end = self.on_end, None
            told(self.why())

    def why(self) -> str:
        """Why there is no machine any more, or none that answers, with the console's tail."""
        tail = self.console.tail()
        if not self.ended.done():
            how = "the virtual machine does not answer"
        elif self.ended.result() < 0:
            how = f"QEMU was ended by {signal.Signals(-self.ended.result()).name}"
        elif "Kernel panic" in tail:
            how = "the virtual machine's kernel panicked"
        else:
            how = f"QEMU ended with status {self.ended.result()}"
        return f"{how}; its console's last lines: {tail or '(nothing)'}"

    async def until(self, work: Awaitable[T], what: str) -> T:
        """What `work` leads to, unless the machine ends first: a CreateError that says so, with the console's tail."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, self.ended}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise CreateError(f"{what}: {self.why()}")
            try:
                return task.result()
            except SandboxLost as error:
                with contextlib.suppress(TimeoutError):  # its socket closes a moment before it has ended
                    await asyncio.wait_for(asyncio.shield(self.ended), 2)
                raise CreateError(f"{what} ({error}): {self.why()}") from None
        except asyncio.CancelledError:
            # Its maker's deadline is over, or it was given up: what the console said is kept for whoever asks.
            self.console.keep(f"{self.pid}-given-up")
            raise
        finally:
            if not task.done():
                task.cancel()

    async def pause(self) -> None:
        await self.qmp.execute("stop")

    async def resume(self) -> None:
        await self.qmp.execute("cont")

    async def query(self, command: str) -> Any:
        return await self.qmp.execute(command)

    async def close(self) -> None:
        """End it, and wait until it has ended. Twice is fine."""
        self.on_end = None
        try:
            if not self.ended.done():
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
                await asyncio.shield(self.ended)
        finally:  # also where its loop ends before it has
            if hasattr(self, "qmp"):
                self.qmp.close()
            self.console.close()
            if self._link is not None:
                self._link.close()
                self._link = None
