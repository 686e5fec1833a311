"""One sandbox, as its launcher tells of it."""

import asyncio
import os
from collections.abc import Sequence

from excise.errors import CreateError, SandboxLost
from excise.substrates.namespace.request import Answer

DIED = "the launcher of namespace sandboxes died"


def close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


class Place:
    """One sandbox, as its launcher knows it."""

    def __init__(self, id: int, loop: asyncio.AbstractEventLoop, *, listens: bool) -> None:
        self.id = id
        self.listens = listens
        self.ready: asyncio.Future[None] = loop.create_future()
        """Its root is built and its guest serves."""
        self.gone: asyncio.Future[None] = loop.create_future()
        """No process, mount or control group of it is left; or its launcher is dead, and no process or mount is."""
        self.rooting: asyncio.Future[Answer] | None = None
        """The answer to the root that was asked for last."""
        self._loop = loop
        self._pidfd: int | None = None
        self._listener: int | None = None

    def take_listener(self) -> int | None:
        """The listening socket that was asked for; it is the caller's from now on."""
        listener, self._listener = self._listener, None
        return listener

    def answered(self, descriptors: list[int]) -> None:
        """READY came."""
        if len(descriptors) != 1 + self.listens:
            close_all(descriptors)
            self.failed(CreateError("the sandbox's descriptors did not arrive: too many are open; raise `ulimit -n`"))
            return
        self._pidfd = descriptors[0]
        self._listener = descriptors[1] if self.listens else None
        if not self.ready.done():  # else who asked gave up
            self.ready.set_result(None)

    def failed(self, error: Exception) -> None:
        if not self.ready.done():
            self.ready.set_exception(error)
            self.ready.exception()  # seen: who asked may have been cancelled, and nobody is left to be told

    def rooted(self, answer: Answer) -> None:
        """ROOTED came."""
        if self.rooting is not None and not self.rooting.done():
            self.rooting.set_result(answer)

    def left(self) -> None:
        """GONE came, or FAILED."""
        self.failed(CreateError("the sandbox ended while it was made"))
        if self.rooting is not None and not self.rooting.done():
            self.rooting.set_exception(SandboxLost("the sandbox ended while it was given another root"))
            self.rooting.exception()  # seen, as above
        if not self.gone.done():
            self.gone.set_result(None)
        close_all([held for held in (self._pidfd, self._listener) if held is not None])
        self._pidfd = self._listener = None

    def orphaned(self) -> None:
        """The launcher died, and took the sandbox with it: its end is seen where that is said to us by the kernel."""
        self.failed(CreateError(f"{DIED} while it made this one; try again"))
        if self._pidfd is None:
            self.left()
        else:
            self._loop.add_reader(self._pidfd, self._ended)

    def _ended(self) -> None:
        assert self._pidfd is not None
        self._loop.remove_reader(self._pidfd)
        self.left()
