"""Our end of the proxy: one process for a substrate, started with its first door; a door for each sandbox."""

import asyncio
import contextlib
import os
import socket
import subprocess
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from excise.action import Command, Exec, FileAction, Shell
from excise.errors import SandboxLost, SpecError
from excise.host import packets
from excise.host.beside import start
from excise.host.writable import Writable
from excise.network.policy import Policy
from excise.spec import Allow, Network, Spec

PORT = 3128
"""Where the proxy listens on a sandbox's own loopback."""
HERE = "127.0.0.1"
_PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from excise.network.proxy import main
main(int(sys.argv[2]))
"""
_GONE = "the proxy between this sandbox and the network has ended"


def variables(port: int = PORT, host: str = HERE) -> Mapping[str, str]:
    """What programs inside find the proxy by, at `host` as they see it.

    ALL_PROXY is not socks5h://, though that is served: programs without a SOCKS library refuse to start with it.
    """
    proxy = f"http://{host}:{port}"
    here = f"localhost,{HERE},::1"
    upper = {"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy, "ALL_PROXY": proxy, "NO_PROXY": here}
    return {**upper, **{name.lower(): value for name, value in upper.items()}}


def policy_of(network: Network | None) -> Policy:
    """A spec's network as the proxy knows it; SpecError for an entry that names no host or port."""
    if isinstance(network, Allow):
        try:
            return Policy.allowing(network.hosts, network.ports)
        except ValueError as error:
            raise SpecError(f"network=Allow: {error}") from None
    return Policy("open") if network == "open" else Policy("none")


class Phases(NamedTuple):
    """The policies of a spec's steps and of its actions."""

    build: Policy
    run: Policy

    def dressed(self, spec: Spec, env: Mapping[str, str], host: str = HERE) -> tuple[Spec, Mapping[str, str]]:
        """`spec` and the variables of its image with those by which the proxy is found, in either, as is needed."""
        if self.run.mode != "none":
            return spec, {**env, **variables(host=host)}
        return (spec if self.build.mode == "none" else for_steps(spec, host)), env

    @property
    def closed(self) -> bool:
        """Nothing is ever to be reached."""
        return self.build.mode == self.run.mode == "none"


def phases(spec: Spec, *, built: bool = False) -> Phases:
    """`built`: there are no steps to run."""
    run = policy_of(spec.network)
    return Phases(run if built or spec.build_network is None else policy_of(spec.build_network), run)


def for_steps(spec: Spec, host: str = HERE) -> Spec:
    """`spec` with the variables in its steps: where actions are to have none, the sandbox as a whole has none."""
    found = {name: value for name, value in variables(host=host).items() if name not in spec.env and name not in spec.secrets}
    steps = tuple(
        msgspec.structs.replace(step, actions=tuple(_with_variables(action, found) for action in step.actions))
        for step in spec.all_steps()
    )
    return spec.with_steps(steps)


def _with_variables(action: Command | FileAction, found: Mapping[str, str]) -> Command | FileAction:
    # A session was given its variables when it began, and takes no others.
    if not isinstance(action, Exec | Shell) or (isinstance(action, Shell) and action.session is not None):
        return action
    return msgspec.structs.replace(action, env={**found, **action.env})


class Door:
    """One sandbox's way out, as its owner sees it."""

    def __init__(self, proxies: "Proxies", number: int, on_lost: Callable[[str], None]) -> None:
        self._proxies = proxies
        self.number = number
        self.on_lost = on_lost

    async def change(self, policy: Policy) -> None:
        """From now on this policy; what the old one let through is cut when this returns."""
        await self._proxies.ask(self, "change", policy)

    async def close(self) -> None:
        """The listener and every connection are closed when this returns. Twice is fine."""
        if self._proxies.forget(self):
            with contextlib.suppress(SandboxLost):  # a proxy that is gone has no door open
                await self._proxies.ask(self, "close")


class Proxies:
    """The proxy process of one substrate. It dies when we do: its end of the socket between us closes."""

    def __init__(self) -> None:
        self._control: socket.socket | None = None
        self._writable: Writable | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._doors: dict[int, Door] = {}
        self._waiting: dict[tuple[int, str], asyncio.Future[None]] = {}
        self._made = 0

    async def serve(self, listener: int, policy: Policy, on_lost: Callable[[str], None]) -> Door:
        """Open a door on a listening socket, which is ours from now on and closed here.

        Nothing is waited for: who connects before the proxy accepts waits in the kernel. `on_lost` is called, with the
        reason, if the proxy ends or cannot serve it: what runs in the sandbox then fails for want of it, and that is no score.
        """
        self._made += 1
        door = Door(self, self._made, on_lost)
        self._doors[door.number] = door
        try:
            self._start()
            await self._send(door, "serve", policy, [listener])
        except BaseException:
            self.forget(door)
            raise
        finally:
            os.close(listener)
        return door

    async def ask(self, door: Door, verb: str, policy: Policy | None = None) -> None:
        """Have something done to a door, and wait until it is."""
        answer = asyncio.get_running_loop().create_future()
        self._waiting[door.number, verb] = answer
        try:
            await self._send(door, verb, policy, [])
            await answer
        finally:
            self._waiting.pop((door.number, verb), None)

    def forget(self, door: Door) -> bool:
        """Whether it was known until now."""
        return self._doors.pop(door.number, None) is not None

    async def close(self) -> None:
        """End the process, and with it every door."""
        self._doors.clear()
        process, self._process = self._process, None
        self._hang_up()
        if process is not None:
            await asyncio.to_thread(process.wait)

    # ---- the process

    def _start(self) -> None:
        if self._control is not None:
            return
        if self._process is not None:
            self._process.wait()  # it hung up, which it does as it dies
        ours, self._process = start(_PROGRAM)
        ours.setblocking(False)
        self._control, self._writable = ours, Writable(ours.fileno())
        asyncio.get_running_loop().add_reader(ours, self._hear)

    async def _send(self, door: Door, verb: str, policy: Policy | None, descriptors: list[int]) -> None:
        body = [packets.body(policy.packed())] if policy is not None else []
        try:
            while True:
                if self._control is None or self._writable is None:
                    raise SandboxLost(_GONE)
                try:
                    packets.send(self._control, [*body, *descriptors], {"door": door.number, "verb": verb})
                except BlockingIOError:
                    await self._writable.wait()
                except OSError:
                    raise SandboxLost(_GONE) from None
                else:
                    return
        finally:
            for descriptor in body:
                os.close(descriptor)

    def _hear(self) -> None:
        assert self._control is not None
        try:
            packet = packets.receive(self._control)
        except BlockingIOError:
            return
        if packet is None:
            self._lost()
            return
        note: dict[str, Any] = packet[0]
        number, error = note["door"], note["error"]
        answer = self._waiting.get((number, note["verb"]))
        if error is not None and (door := self._doors.pop(number, None)) is not None:
            door.on_lost(error)
        if answer is not None and not answer.done():
            answer.set_result(None) if error is None else answer.set_exception(SandboxLost(error))

    def _lost(self) -> None:
        """The process has ended, and nobody asked it to."""
        self._hang_up()
        doors, self._doors = self._doors, {}
        for door in doors.values():
            door.on_lost(_GONE)

    def _hang_up(self) -> None:
        if self._control is not None and self._writable is not None:
            asyncio.get_running_loop().remove_reader(self._control)
            self._writable.forget()
            self._control.close()
        self._control = self._writable = None
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(SandboxLost(_GONE))
