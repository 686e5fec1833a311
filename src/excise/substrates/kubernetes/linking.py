"""How the guest in a pod is reached: by a port that the API forwards, by an exec, or by the pod's own address."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

import msgspec

from excise.errors import CreateError, SandboxLost
from excise.guest.carrier import Carrier, SocketCarrier
from excise.handles import FIRST_PROBE_PAUSE_S, LONGEST_PROBE_PAUSE_S
from excise.substrates.kubernetes import arrival, events, pod
from excise.substrates.kubernetes.api import Api
from excise.substrates.kubernetes.arrival import By, Way
from excise.substrates.kubernetes.carrier import Surroundings, Told
from excise.substrates.kubernetes.dial import exec_carrier, port_carrier
from excise.substrates.kubernetes.watch import Followed

_REFUSED = "connection refused"
_LISTENS_S = 20.0
"""For a guest whose container runs to listen. It takes a millisecond, on a node that has one to spare."""
_CONNECT_S = 10.0


class Reached(msgspec.Struct, frozen=True):
    """A guest that waits to be greeted."""

    carrier: Carrier
    found: Surroundings


async def reach(api: Api, followed: Followed, program: bytes, *, way: Way, by: By, secret: str) -> Reached:
    """The guest of a pod whose container runs."""
    assert followed.pod is not None
    name: str = followed.pod["metadata"]["name"]
    if by == "exec":
        return await _by_exec(api, name, program, way)
    if way == "exec":
        await _send(api, name, program)
    if by == "forward":
        return await _listening(followed, lambda: _by_port(api, name, secret))
    address: str = followed.pod["status"]["podIP"]
    return await _listening(followed, lambda: _by_address(address, secret))


async def _by_exec(api: Api, name: str, program: bytes, way: Way) -> Reached:
    argv = arrival.give() if way == "init" else arrival.fetch(program, and_give=True)
    carrier = await exec_carrier(api, name, pod.CONTAINER, argv)
    try:
        if way == "exec":
            carrier.send(program)
        return Reached(carrier, await carrier.told())
    except BaseException:
        carrier.close()
        raise


async def _send(api: Api, name: str, program: bytes) -> None:
    """The program, over an exec of its own."""
    stream = await api.exec(name, pod.CONTAINER, arrival.fetch(program, and_give=False))
    said = b""
    try:
        await stream.write(program)
        while (frame := await stream.frame()) is not None:
            said += frame[1]
    except BrokenPipeError:
        pass  # how it ended says why
    finally:
        stream.close()
    if stream.ending is None or stream.ending.exit_code != 0:
        words = " ".join(said.decode("utf-8", "replace").split())
        raise CreateError(
            f"the image takes no guest over exec ({words or stream.ending}): it needs sh, head and mkfifo; say guest=init"
        )


async def _by_port(api: Api, name: str, secret: str) -> Reached:
    carrier = await port_carrier(api, name, arrival.PORT)
    try:
        carrier.send(secret.encode())
        return Reached(carrier, await carrier.told())
    except BaseException:
        carrier.close()
        raise


async def _by_address(address: str, secret: str) -> Reached:
    loop = asyncio.get_running_loop()
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        async with asyncio.timeout(_CONNECT_S):
            await loop.sock_connect(sock, (address, arrival.PORT))
        await loop.sock_sendall(sock, secret.encode())
        telling = Told()
        while (found := telling.take(await _some(sock))) is None:
            pass
        return Reached(SocketCarrier(sock), found)
    except (TimeoutError, OSError) as error:
        sock.close()
        if isinstance(error, ConnectionRefusedError):
            raise SandboxLost(_REFUSED) from None
        raise CreateError(
            f"the pod's address {address} is not reached from here ({error or 'no answer'}): say link=forward"
        ) from None
    except BaseException:
        sock.close()
        raise


async def _some(sock: socket.socket) -> bytes:
    data = await asyncio.get_running_loop().sock_recv(sock, 65536)
    if not data:
        raise SandboxLost("the guest hung up before it had told anything")
    return data


async def _listening(followed: Followed, reach_once: Callable[[], Awaitable[Reached]]) -> Reached:
    """Of a guest that may not listen yet: its container runs, and nobody outside is told what it does."""
    pause_s = FIRST_PROBE_PAUSE_S
    try:
        async with asyncio.timeout(_LISTENS_S):
            while True:
                try:
                    return await reach_once()
                except SandboxLost as error:
                    if _REFUSED not in str(error):
                        raise
                lost = events.loss(followed.pod, gone=followed.gone, events=followed.events)
                if lost is not None:
                    raise CreateError(str(lost))
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PROBE_PAUSE_S)
    except TimeoutError:
        raise CreateError(
            f"nobody listens in the pod after {_LISTENS_S:g} s: where the runtime forwards no ports, say link=exec"
        ) from None
