"""A sandbox's way out: a port of its own loopback that ssh forwards to a proxy here, which does as the spec's network says.

A machine has no network card at all: what the proxy does not let through has no other way.
"""

import os
import socket
from typing import Any

from excise.errors import SandboxLost
from excise.network.client import PORT, Door, Proxies
from excise.network.policy import Policy
from excise.substrates.vm.life import Life
from excise.substrates.vm.ssh import SshClient, library

_BACKLOG = 128
_NAME = "way-out"


class WayOut:
    """Opened when there is a policy that lets anything through."""

    def __init__(self, proxies: Proxies, connection: SshClient, life: Life) -> None:
        self._proxies = proxies
        self._connection = connection
        self._life = life
        self._listener: Any = None
        self._folder = -1
        self._door: Door | None = None

    async def change(self, policy: Policy) -> None:
        """From now on this policy; what the old one let through is cut when this returns."""
        if policy.mode == "none":
            await self.close()
        elif self._door is not None:
            await self._door.change(policy)
        else:
            await self._open(policy)

    async def _open(self, policy: Policy) -> None:
        # By a descriptor: the path may be longer than a socket's name can be.
        self._folder = os.open(self._life.directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        path = f"/proc/self/fd/{self._folder}/{_NAME}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(path)
            listener.listen(_BACKLOG)
            self._door = await self._proxies.serve(os.dup(listener.fileno()), policy, self._life.end)
        try:
            self._listener = await self._connection.forward_remote_port_to_path("127.0.0.1", PORT, path)
        except (library().Error, OSError) as error:
            raise SandboxLost(f"the sandbox's way out cannot be opened ({error})") from None

    async def close(self) -> None:
        """Who is connected is cut off, and nobody is let in."""
        door, self._door = self._door, None
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        if door is not None:
            await door.close()
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1
            (self._life.directory / _NAME).unlink(missing_ok=True)
