"""A namespace sandbox as a Handle: what a guest can do, a lease, and a way out that may be another once it is built."""

import asyncio
import contextvars
from typing import Any

from excise.guest.handle import GuestHandle
from excise.network.client import Door, Proxies
from excise.network.policy import Policy


class NamespaceHandle(GuestHandle):
    """Ends with the process that made it, or with its lease, whichever is first."""

    def __init__(self, *args: Any, lease_s: float, **more: Any) -> None:
        super().__init__(*args, **more)
        self._loop = asyncio.get_running_loop()
        self._lease = self._expires_in(lease_s)
        self._door: Door | None = None
        self._once_built: Policy | None = None

    async def open_door(self, proxies: Proxies, listener: int, phases: tuple[Policy, Policy]) -> None:
        """Serve `listener`, which is ours no more: by the first policy while the steps run, then by the second."""
        build, run = phases
        self._door = await proxies.serve(listener, build, self.link.fail)
        self._once_built = run if run != build else None

    async def _built(self) -> None:
        if self._door is None or self._once_built is None:
            return
        if self._once_built.mode == "none":
            await self._door.close()
        else:
            await self._door.change(self._once_built)

    # ---- life

    def _expires_in(self, lease_s: float) -> asyncio.TimerHandle:
        # In a context of its own: what the end of a lease does is no part of the rollout that asked for it.
        return self._loop.call_later(lease_s, self._expire, context=contextvars.Context())

    def _expire(self) -> None:
        self.link.fail("the sandbox's lease ran out: renew it in time, or ask for a longer one")
        self._expiring = self._loop.create_task(self.close())

    async def renew(self, lease_s: float) -> None:
        await super().renew(lease_s)
        self._lease.cancel()
        self._lease = self._expires_in(lease_s)

    async def close(self) -> None:
        self._lease.cancel()
        await super().close()

    async def shut_door(self) -> None:
        """Before the sandbox is removed: who is connected through it is cut off."""
        if self._door is not None:
            await self._door.close()
