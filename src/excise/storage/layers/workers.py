"""Workers from this side: a few processes that work on trees, started when the first is needed, ended with their owner."""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

import msgspec

from excise import errors
from excise.errors import ExciseError, SpecError, SubstrateError
from excise.storage.background import to_end
from excise.storage.layers.jobs import Answer, Failed, Job, Progress

_PROGRAM = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]);"
    " from excise.storage.layers.worker import serve; serve(int(sys.argv[2]))"
)
_MOST_LINE_BYTES = 64 << 20


class Workers:
    """At most `count` of them. Use it in one event loop, as a context."""

    def __init__(self, count: int = 2) -> None:
        self._free = asyncio.Semaphore(count)
        self._idle: list[asyncio.subprocess.Process] = []
        self._all: set[asyncio.subprocess.Process] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await to_end(self._end(*self._all))

    async def run(self, job: Job, progress: Callable[[Progress], None] = lambda _: None) -> str:
        """Have `job` done and return its answer. A caller that is cancelled ends the worker, and what it was doing."""
        async with self._free:
            worker = self._idle.pop() if self._idle else await to_end(self._start())
            try:
                answer = await _ask(worker, job, progress)
            except BaseException:
                await to_end(self._end(worker))
                raise
            self._idle.append(worker)
        if isinstance(answer, Failed):
            raise _raised(answer)
        return answer.text

    async def _start(self) -> asyncio.subprocess.Process:
        path = json.dumps([place for place in sys.path if place])
        worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-c", _PROGRAM, path, str(os.getpid())),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd="/",
            limit=_MOST_LINE_BYTES,
            start_new_session=True,  # Ctrl-C is ours to handle
        )
        self._all.add(worker)
        return worker

    async def _end(self, *workers: asyncio.subprocess.Process) -> None:
        for worker in workers:
            self._all.discard(worker)
            with suppress(ProcessLookupError):
                worker.kill()
        for worker in workers:
            await worker.communicate()


async def _ask(worker: asyncio.subprocess.Process, job: Job, progress: Callable[[Progress], None]) -> Answer:
    assert worker.stdin is not None
    assert worker.stdout is not None
    decoder = msgspec.json.Decoder(Answer)
    with suppress(ConnectionError):  # it says below how it ended
        worker.stdin.write(msgspec.json.encode(job) + b"\n")
        await worker.stdin.drain()
    while line := await worker.stdout.readline():
        answer = decoder.decode(line)
        if not isinstance(answer, Progress):
            return answer
        progress(answer)
    code = await worker.wait()
    raise SubstrateError(f"the process that unpacks images ended by itself ({code}): is there memory left? try again")


def _raised(failed: Failed) -> Exception:
    if failed.kind == "OSError":
        return OSError(failed.errno, failed.text)
    kind = getattr(errors, failed.kind, SubstrateError)
    return kind(failed.text) if issubclass(kind, ExciseError) else SpecError(failed.text)
