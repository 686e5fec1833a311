"""One pod as a Handle."""

import asyncio
from collections.abc import Callable

from excise.action import Action, Command, Exec, Observation
from excise.adoption import require_adoption
from excise.errors import SandboxLost, SubstrateError
from excise.guestless.actions import Actions
from excise.guestless.handle import ExecHandle
from excise.guestless.inside import Inside, Start
from excise.guestless.process import GuestlessProcess
from excise.handles import Readiness, environment, finish
from excise.spec import Spec
from excise.substrate import Capabilities, Process
from excise.substrates.kubernetes import events, pod
from excise.substrates.kubernetes.api import Object
from excise.substrates.kubernetes.pods import Pods
from excise.substrates.kubernetes.refusals import Forbidden
from excise.substrates.kubernetes.watch import Followed
from excise.substrates.kubernetes.wire import Boot, PodWire

_LAST_EXEC_S = 5.0
# What the runtime says of a request no sandbox could carry out; everything else it says is its own trouble.
_CALLERS_FAULT = ("executable file not found", "no such file or directory", "permission denied")


class KubernetesHandle(ExecHandle[Actions]):
    """Actions by pod exec, each with a shell of ours around it."""

    def __init__(
        self,
        pods: Pods,
        there: Object,
        *,
        address: str,
        capabilities: Capabilities,
        spec: Spec,
        followed: Followed | None = None,
        ready: bool = False,
        on_close: "Callable[[KubernetesHandle], None] | None" = None,
    ) -> None:
        """`followed`: what the watch shows of it; of a pod that another client made, nothing."""
        self.id = pod.sandbox_id(there)
        self._name, self._uid = pod.split_id(self.id)
        self._pods = pods
        self._address = address
        self._capabilities = capabilities
        self._spec = spec
        self._followed = followed
        self._on_close = on_close
        self._readiness = Readiness(ready=ready)
        self._leaves = followed is None
        """Something may run that no action waits for; of what another client left, nothing is known."""
        self._inside = Inside(self._exec, callers_fault=_CALLERS_FAULT, lost=self._lost)
        self._actions = Actions(
            self._inside,
            variables=lambda action: environment({}, self._spec, action),
            limited="memory_bytes" in spec.limits.asked(),
        )

    async def _exec(self, start: Start) -> PodWire:
        boot = Boot(start)
        try:
            stream = await self._pods.api.exec(self._name, pod.CONTAINER, boot.argv, tty=start.terminal)
        except Forbidden as error:
            raise SandboxLost(str(error)) from None
        except SubstrateError as error:
            raise await self._lost(f"the pod of the sandbox takes no exec: {error}") from None
        wire = PodWire(stream, boot, self._lost, _CALLERS_FAULT)
        try:
            if boot.preamble:
                await wire.write(boot.preamble)
        except BrokenPipeError:
            return wire  # it has ended already: how is there to be read
        except BaseException:
            wire.close()
            raise
        return wire

    async def _lost(self, otherwise: str) -> SandboxLost:
        if self._inside.closed:
            return SandboxLost("the sandbox was closed while the action ran")
        return await self._pods.lost(self._name, self._uid, self._followed, otherwise)

    async def ready(self) -> None:
        """Once is enough: who asked for the same sandbox with the same request_id does not run its steps again."""
        async with self._readiness.turn:
            self._check_open()
            await self._readiness.reach(self, self._spec)

    async def alive(self) -> None:
        """Only an exec tells: the API goes on saying Running of a pod whose node is lost."""
        self._check_open()
        await self._inside.run_inline(Exec(("sh", "-c", ":", "sh")))

    async def adopt(self, spec: Spec) -> None:
        async with self._readiness.turn:
            self._check_open()
            require_adoption(self._spec, spec, self._capabilities, self._address)
            self._spec = spec
            self._readiness.adopt()

    # ---- actions

    async def run(self, action: Action) -> Observation:
        seen = await super().run(action)
        self._leaves |= seen.still_running
        return seen

    async def start(self, action: Command) -> Process:
        self._leaves = True
        return await super().start(action)

    # ---- life

    async def renew(self, lease_s: float) -> None:
        self._check_open()
        await self._pods.renew(self._name, self._uid, lease_s)

    async def close(self) -> None:
        await finish(self._remove(self._actions.let_go()))

    async def _end_all(self) -> None:
        """Every process of the sandbox but its first: the node would end them some seconds after the API forgot the pod."""
        try:
            async with asyncio.timeout(_LAST_EXEC_S):
                stream = await self._pods.api.exec(self._name, pod.CONTAINER, ("sh", "-c", "kill -9 -1"), stdin=False)
                try:
                    while await stream.frame() is not None:
                        pass
                finally:
                    stream.close()
        except (SubstrateError, TimeoutError):
            return  # what takes no exec is ended with its pod

    async def _remove(self, live: tuple[GuestlessProcess, ...]) -> None:
        if (self._leaves or live) and (self._followed is None or events.loss(self._followed.pod) is None):
            await self._end_all()
        await self._pods.remove(self._name, self._uid, self._followed)
        if self._on_close is not None:
            self._on_close(self)
        for process in live:
            await process.settled()
