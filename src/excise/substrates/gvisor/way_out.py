"""A sandbox's way out: a wire from gVisor's network to one that holds nothing but a listener, behind which is the proxy.

The keeper has a network namespace of its own, without any way on; the sandbox has another, and runsc takes its end of the
wire over. So all that the sandbox can reach is the keeper's end, where the proxy of `network/` accepts on a descriptor.
"""

import asyncio
import os
from collections.abc import Callable

from excise.errors import CreateError, SandboxLost
from excise.host import packets
from excise.host.link import Keeper
from excise.network.client import PORT, Door, Proxies
from excise.network.policy import Policy

HOST = "10.254.0.1"
"""The keeper's end of the wire, in a network that nobody else is in."""
PROGRAMS = ("ip", "unshare", "nsenter", "mount")
NEEDS = "a way out needs ip (iproute2), unshare and nsenter (util-linux) on PATH"
# The namespace is held by a file, in the keeper's mount namespace; the interface goes there by a process that is in it.
SCRIPT = f"""
set -e
: >"$1"
unshare --net="$1" true
nsenter --net="$1" sleep 60 &
holder=$!
ip link add excise0 type veth peer name excise1
ip addr add {HOST}/30 dev excise0
ip link set excise0 up
tries=0
while [ "$(readlink /proc/$holder/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do
    tries=$((tries + 1)); [ $tries -lt 1000 ] || exit 1
done
ip link set excise1 netns $holder
nsenter --net="$1" sh -ec 'ip link set lo up; ip addr add 10.254.0.2/30 dev excise1; ip link set excise1 up'
kill $holder
"""


async def listen(keeper: Keeper) -> int:
    """A listener at the keeper's end: a descriptor, the caller's."""
    heard, told = packets.pair()
    heard.setblocking(False)
    with heard:
        body = packets.body({"op": "listen", "host": HOST, "port": PORT})
        try:
            with told:
                await keeper.send([body, told.fileno()])
        finally:
            os.close(body)
        await Readable(heard.fileno()).wait()
        answer = packets.receive(heard)
    if answer is None or not answer[1]:
        raise CreateError(f"the sandbox's way out cannot be opened: {answer[0].get('error') if answer else 'its keeper died'}")
    return answer[1][0]


class Readable:
    """Waits until a descriptor has something to read, or its other end is closed."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    async def wait(self) -> None:
        loop = asyncio.get_running_loop()
        woken = loop.create_future()
        loop.add_reader(self._descriptor, lambda: woken.done() or woken.set_result(None))
        try:
            await woken
        finally:
            loop.remove_reader(self._descriptor)


class WayOut:
    """Open as its policy says; closed for good where that is "none"."""

    def __init__(self, proxies: Proxies, on_lost: Callable[[str], None]) -> None:
        self._proxies = proxies
        self._on_lost = on_lost
        self._door: Door | None = None

    async def begin(self, listener: int, policy: Policy) -> None:
        self._door = await self._proxies.serve(listener, policy, self._on_lost)

    async def change(self, policy: Policy) -> None:
        """From now on this policy; what the old one let through is cut when this returns."""
        if policy.mode == "none":
            await self.close()
        elif self._door is None:
            raise SandboxLost("the sandbox's way out is closed")
        else:
            await self._door.change(policy)

    async def close(self) -> None:
        door, self._door = self._door, None
        if door is not None:
            await door.close()
