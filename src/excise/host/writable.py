"""Waiting until a descriptor takes more: any number of tasks at once, and one that closes it meanwhile."""

import asyncio


class Writable:
    """Who waits for one descriptor. The event loop itself remembers only the last who asked."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._waiting: set[asyncio.Future[None]] = set()
        self._forgotten = False

    async def wait(self) -> None:
        """Return when it may take more, or is closed: try again to know."""
        loop = asyncio.get_running_loop()
        woken = loop.create_future()
        self._waiting.add(woken)
        loop.add_writer(self._descriptor, self._wake)
        try:
            await woken
        finally:
            self._waiting.discard(woken)
            if not self._waiting and not self._forgotten:
                loop.remove_writer(self._descriptor)

    def _wake(self) -> None:
        for woken in self._waiting:
            if not woken.done():
                woken.set_result(None)

    def forget(self) -> None:
        """The descriptor is about to be closed; everyone is woken to see that."""
        if not self._forgotten:
            self._forgotten = True
            asyncio.get_running_loop().remove_writer(self._descriptor)
            self._wake()
