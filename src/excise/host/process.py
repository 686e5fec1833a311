"""The client's side of a running action: its pipes, read only when asked, and its runner's answers."""

import array
import asyncio
import contextlib
import fcntl
import os
import socket
import termios
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal

import msgspec

from excise.action import End, Event, Exit, FileInfo, Keep, Observation, Output
from excise.errors import SandboxLost, SpecError
from excise.handles import finish, observe
from excise.host import packets
from excise.host.runner import set_size
from excise.host.writable import Writable

_PIECE_BYTES = 65536
Stream = Literal["stdout", "stderr"]


class Pipes:
    """Reading ends, taken from only when somebody asks: an unread pipe stalls its own producer and nobody else."""

    def __init__(self, ends: dict[Stream, int]) -> None:
        self._ends = ends
        for descriptor in ends.values():
            os.set_blocking(descriptor, False)

    async def until(self, done: asyncio.Future[Any]) -> AsyncIterator[Output]:
        """Output as it comes, until `done`; then what is in the pipes at that moment, and no more."""
        async for output in self.live(done):
            yield output
        for output in self.rest():
            yield output

    async def live(self, done: asyncio.Future[Any]) -> AsyncIterator[Output]:
        """Output as it comes, until `done`."""
        while not done.done():
            got = False
            for stream in tuple(self._ends):
                if data := self._read(stream, _PIECE_BYTES):
                    got = True
                    yield Output(stream, data)
            if got:
                await asyncio.sleep(0)  # other tasks' turn: a fast producer must not hold the loop
            else:
                await self._readable(done)

    def rest(self) -> list[Output]:
        """What is in the pipes now, which is no more than pipes hold."""
        found: list[Output] = []
        for stream in tuple(self._ends):
            left = self._waiting_bytes(stream)
            while left > 0 and (data := self._read(stream, min(left, _PIECE_BYTES))):
                left -= len(data)
                found.append(Output(stream, data))
        return found

    def _read(self, stream: Stream, most: int) -> bytes:
        if stream not in self._ends:
            return b""  # closed while the reader was elsewhere
        try:
            data = os.read(self._ends[stream], most)
        except BlockingIOError:
            return b""
        except OSError:
            data = b""  # a terminal says EIO where a pipe says end of file
        if not data:
            close_watched(self._ends.pop(stream))
        return data

    def _waiting_bytes(self, stream: Stream) -> int:
        count = array.array("i", [0])
        fcntl.ioctl(self._ends[stream], termios.FIONREAD, count)
        return count[0]

    async def _readable(self, done: asyncio.Future[Any]) -> None:
        loop = asyncio.get_running_loop()
        woken = loop.create_future()

        def wake(*_: object) -> None:
            if not woken.done():
                woken.set_result(None)

        for descriptor in self._ends.values():
            loop.add_reader(descriptor, wake)
        done.add_done_callback(wake)
        try:
            await woken
        finally:
            done.remove_done_callback(wake)
            for descriptor in self._ends.values():
                loop.remove_reader(descriptor)

    def close(self) -> None:
        """Whoever reads meanwhile finds nothing more, and waits for the end alone."""
        while self._ends:
            close_watched(self._ends.popitem()[1])


def close_watched(descriptor: int) -> None:
    """Close what the loop may be watching: closed behind its back, it is mixed up with the next of the same number."""
    asyncio.get_running_loop().remove_reader(descriptor)
    os.close(descriptor)


class Answers:
    """A runner's answers, each handed to whoever waits for the next; None says that the runner is gone."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Future[dict[str, Any] | None] = self._loop.create_future()
        self.gone = False
        self._loop.add_reader(sock, self._receive)

    def next(self) -> asyncio.Future[dict[str, Any] | None]:
        return self._waiting

    def _receive(self) -> None:
        try:
            record = packets.hear(self._sock)
        except BlockingIOError:
            return
        except OSError:  # out of descriptors: what it said is lost, and with it the action
            record = None
        if record is None:
            self.close()
            return
        waiting, self._waiting = self._waiting, self._loop.create_future()
        waiting.set_result(record)

    def order(self, note: dict[str, Any], descriptors: list[int] | None = None) -> None:
        """Tell the runner something; if it is gone, its silence says so elsewhere."""
        if not self.gone:
            with contextlib.suppress(OSError):
                packets.send(self._sock, descriptors or [], note)

    def close(self) -> None:
        if self.gone:
            return
        self.gone = True
        self._loop.remove_reader(self._sock)
        self._sock.close()
        if not self._waiting.done():
            self._waiting.set_result(None)


class HostProcess:
    """A `Process` on this machine."""

    def __init__(
        self,
        *,
        answers: Answers,
        pipes: Pipes,
        stdin: int | None,
        terminal: bool,
        keep: Keep,
        timeout_s: float | None,
        typed: bytes = b"",
    ) -> None:
        """`typed` is written to its stdin, as far as it reads."""
        self.id = os.urandom(8).hex()
        self._answers = answers
        self._pipes = pipes
        self._stdin = stdin
        self._writable = None if stdin is None else Writable(stdin)
        self._terminal = terminal
        self._keep = keep
        self._exit = answers.next()
        self._timed_out = False
        self._ended: Observation | None = None
        self._timer = None if timeout_s is None else asyncio.get_running_loop().call_later(timeout_s, self._time_out)
        self._typing = asyncio.create_task(self._type(typed)) if typed else None
        self.on_release: Callable[[HostProcess], None] = lambda _: None

    async def _type(self, data: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):
            await self.write(data)

    def _time_out(self) -> None:
        self._timed_out = not self._exit.done()
        self._answers.order({"kill": True})

    async def events(self) -> AsyncIterator[Event]:
        async for output in self._pipes.until(self._exit):
            yield output
        record = self._exit.result()
        self._release()
        if record is None:
            self._answers.close()
            raise SandboxLost("the process that watched over this action is gone")
        if self._timed_out and record.get("living") and not record.get("killed"):
            await finish(self.kill())  # it ended just before it was told to: what it left must not live on
            record["living"] = False
        self._ended = as_observation(record, timed_out=self._timed_out)
        if self._ended.still_running:
            self._answers.order({"drain": True})
        else:
            self._answers.close()
        yield Exit(self._ended)

    def _release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._pipes.close()
        self._close_input()  # which ends the typing, too

    def _close_input(self) -> None:
        stdin, self._stdin = self._stdin, None
        if stdin is not None and self._writable is not None:
            self._writable.forget()
            os.close(stdin)

    async def wait(self) -> Observation:
        return self._ended if self._ended is not None else await observe(self, self._keep)

    async def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            if self._stdin is None or self._writable is None:
                raise BrokenPipeError("this process's stdin is closed")
            try:
                view = view[os.write(self._stdin, view) :]
            except BlockingIOError:
                await self._writable.wait()
            except OSError as error:  # a terminal says EIO where a pipe is broken
                raise BrokenPipeError(error.errno, "this process no longer reads") from None

    async def close_stdin(self) -> None:
        if self._terminal:
            await self.write(b"\x04")  # a terminal's end of file is a character
        else:
            self._close_input()

    async def resize(self, rows: int, columns: int) -> None:
        if not self._terminal:
            raise SpecError("this process has no terminal to resize: start it with pty=Pty()")
        if self._stdin is not None:
            set_size(self._stdin, rows, columns)

    async def signal(self, number: int, depth: int = 0) -> None:
        """To the program's process group; or, `depth` processes below a command that stands around it, to it alone."""
        self._answers.order({"signal": number, "depth": depth})

    async def kill(self) -> None:
        """End all that the action started; returns when it is dead or was gone before."""
        while not self._answers.gone:
            answered = self._answers.next()
            self._answers.order({"kill": True})
            record = await asyncio.shield(answered)
            if record is None or record.get("killed") or not record.get("living"):
                break
        self.release()

    def leave(self) -> None:
        """Let go of a program that still runs, and let it run: the sandbox's end is its own."""
        self._answers.order({"leave": True})
        self.release()

    def release(self) -> None:
        """Let go of everything. A program that still runs is killed; what an ended one left running is not."""
        self._release()
        self._answers.close()
        self.on_release(self)


def as_observation(record: dict[str, Any], *, timed_out: bool) -> Observation:
    failed = record.get("errno") is not None
    end = End.SIGNALED if record.get("signal") else End.EXITED
    if timed_out:
        end = End.TIMED_OUT
    elif record.get("out_of_disk"):
        end = End.OUT_OF_DISK
    return Observation(
        end=end,
        exit_code=1 if failed else None if timed_out else record.get("code"),
        signal=record.get("signal") if end is End.SIGNALED else None,
        guest_ns=record.get("guest_ns"),
        cpu_ns=record.get("cpu_ns"),
        max_rss_bytes=record.get("max_rss_bytes"),
        still_running=bool(record.get("living")),
        session_replaced=bool(record.get("replaced")),
        errno=record.get("errno"),
        files=msgspec.convert(record.get("files") or (), tuple[FileInfo, ...]),
    )
