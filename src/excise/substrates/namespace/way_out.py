"""One sandbox's way out: a door on a listener inside it, open as its policy says, and shut where that is "none"."""

import os
import socket
from collections.abc import Callable

from excise.errors import SandboxLost, SpecError
from excise.network.client import Door, Proxies
from excise.network.policy import Policy

_NONE = Policy("none")
_BACKLOG = 128


class WayOut:
    """Opened, changed and shut again. Shut, whoever connects inside is refused, as if nobody listened."""

    def __init__(self, proxies: Proxies, on_lost: Callable[[str], None]) -> None:
        self._proxies = proxies
        self._on_lost = on_lost
        self._listener: socket.socket | None = None
        self._door: Door | None = None
        self._policy = _NONE

    async def begin(self, listener: int, policy: Policy, *, keep: bool) -> None:
        """By `listener`, which is ours from now on. `keep`: it can be opened again after it was shut."""
        if keep:
            self._listener = socket.socket(fileno=listener)
            # It is shut and opened again while connections of before still linger; and shut, its port is anybody's inside.
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            await self._open(policy) if policy.mode != "none" else self._listener.shutdown(socket.SHUT_RDWR)
        else:
            self._door = await self._proxies.serve(listener, policy, self._on_lost)
        self._policy = policy

    def require(self, *policies: Policy) -> None:
        """Refuse what there is no listener for."""
        if self._door is None and self._listener is None and any(policy.mode != "none" for policy in policies):
            raise SpecError("this sandbox was made without a way out: make it of a spec whose needs name 'adopts'")

    async def change(self, policy: Policy) -> None:
        """From now on this policy; what the old one let through is cut when this returns."""
        if policy == self._policy:
            return
        if policy.mode == "none":
            await self.shut()
        elif self._door is None:
            await self._open(policy)
        else:
            await self._door.change(policy)
        self._policy = policy

    async def _open(self, policy: Policy) -> None:
        assert self._listener is not None
        try:
            self._listener.listen(_BACKLOG)
        except OSError as error:
            raise SandboxLost(f"the sandbox's way out cannot be opened ({error.strerror}): something inside has it") from None
        self._door = await self._proxies.serve(os.dup(self._listener.fileno()), policy, self._on_lost)

    async def shut(self) -> None:
        """Who is connected is cut off, and nobody is let in."""
        door, self._door = self._door, None
        if door is not None:
            await door.close()
            if self._listener is not None:
                self._listener.shutdown(socket.SHUT_RDWR)  # it stays bound, and refuses
        self._policy = _NONE

    async def close(self) -> None:
        listener, self._listener = self._listener, None
        await self.shut()
        if listener is not None:
            listener.close()
