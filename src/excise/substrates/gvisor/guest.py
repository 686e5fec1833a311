"""`gvisor+guest`: the guest as PID 1 of the container, a socket of ours as its stdin and stdout."""

import socket
from collections.abc import Callable
from typing import Any

import msgspec

from excise.action import MakeDir
from excise.errors import CreateError, SandboxLost
from excise.guest.carrier import SocketCarrier, pair
from excise.guest.handle import GuestHandle
from excise.guest.link import Link
from excise.guest.programs import program
from excise.handles import finish, make_ready
from excise.session_state import give_sessions, read_sessions
from excise.substrate import Capabilities, Change, Snapshot, unsupported
from excise.substrates.gvisor import bundle
from excise.substrates.gvisor.container import Container
from excise.substrates.gvisor.making import REMEDY, Gvisor, with_limits
from excise.substrates.gvisor.program import BUILD, Platform, Runsc


class ConsoleCarrier(SocketCarrier):
    """Its end is told with the last words of runsc, which knows more of it than a socket."""

    def __init__(self, sock: socket.socket, last_words: Callable[[], str]) -> None:
        super().__init__(sock)
        self._last_words = last_words

    def _over(self, reason: str) -> None:
        super()._over(f"{reason}; runsc's last words: {self._last_words()}")


class GvisorGuestHandle(GuestHandle):
    """A container whose PID 1 is the guest; after a reset another one."""

    def __init__(
        self,
        maker: "GvisorGuestSubstrate",
        container: Container,
        snapshot: Snapshot | None,
        lease_s: float,
        *args: Any,
        **more: Any,
    ) -> None:
        super().__init__(*args, **more)
        self._maker = maker
        self._container = container
        self._begun_with = snapshot
        self._lease_s = lease_s

    async def _make_ready(self) -> None:
        if not self._adopted:
            # What is mounted over the image, /tmp say, has no directory of the image's.
            await self.run(MakeDir(self._container.start.workdir, mode=0o777))
        if self._adopted or self._begun_with is None:
            await super()._make_ready()
            return
        await make_ready(self, self._spec.with_steps(()))  # its steps are in its files
        await give_sessions(self, self._begun_with.sessions)

    # ---- states

    def _require(self, verb: str) -> None:
        if self._capabilities.snapshot is None:
            raise unsupported(self._address, verb)

    async def snapshot(self, *, keep_s: float | None = None) -> Snapshot:
        self._require("snapshot")
        async with self._readying:
            self.link.check()
            sessions = await read_sessions(self, self.sessions, self.base, self._spec)
            parent = None if self._begun_with is None else self._begun_with.id
            return await self._maker.states.take(
                self._container, spec=self._spec, parent=parent, lease_s=self._lease_s, keep_s=keep_s, sessions=sessions
            )

    async def reset(self, snapshot: Snapshot) -> None:
        """Another container, and another link to it, under the same handle. Given up half-way, the sandbox is lost."""
        self._require("reset")
        async with self._readying:
            self.link.check()
            made = await self._maker.another(self._spec, snapshot, self._lease_s)
            try:
                link = await begun(made)
            except BaseException:
                await finish(made.close())
                raise
            self.link.close()
            before, self._container = self._container, made
            made.on_lost = link.fail
            self._begun_with, self._adopted = snapshot, False
            try:
                self.greet(link)
                await finish(before.close())
                await self._make_ready()
            except BaseException:
                self.link.fail("its reset was given up half-way: close it and make another one")
                raise

    async def _built(self) -> None:
        """What the steps wrote is the start, and the network is the run's."""
        await self._container.built()
        if self._capabilities.diff and self._spec.all_steps():
            await self._container.mark()

    async def diff(self, since: Snapshot | None, *, contents: bool = False) -> tuple[Change, ...]:
        self._require("diff")
        self.link.check()
        base = None if since is None else self._maker.states.upper(since, self._container.start.image.key)
        return await self._container.changes(base, contents=contents)

    # ---- life

    async def pause(self) -> None:
        self.link.check()
        await self._container.verb("pause")
        self.link.paused = True

    async def resume(self) -> None:
        self.link.check()
        await self._container.verb("resume")
        self.link.paused = False

    async def renew(self, lease_s: float) -> None:
        self.link.check()
        await self._container.renew(lease_s)
        self._lease_s = lease_s

    async def remove(self) -> None:
        """Nothing of it is left on return."""
        await self._container.close()


async def begun(container: Container) -> Link:
    """Start a prepared container; nobody has greeted the guest in it yet."""
    ours, theirs = pair()
    try:
        with theirs:
            await container.run_guest(theirs)
        return Link(ConsoleCarrier(ours, container.last_words))
    except BaseException:
        ours.close()
        raise


class GvisorGuestSubstrate(Gvisor[GvisorGuestHandle]):
    """Containers of runsc, an action a frame."""

    # The guest keeps an action's processes below it as a child subreaper; Debian 12's runsc knows none.
    _remedy = f"{REMEDY}; and the guest needs a runsc that is not years old: {BUILD}"

    def __init__(self, *, runsc: str | None = None, platform: Platform | None = None) -> None:
        super().__init__("gvisor+guest", runsc, platform)

    async def probe(self) -> Capabilities:
        self._guest = program("excise-guest")
        return await super().probe()

    def _able(self, runsc: Runsc, common: Capabilities) -> Capabilities:
        own = [name for name, able in (("disk_bytes", runsc.sizes), ("pids", runsc.counts)) if able]
        found = msgspec.structs.replace(common, sessions=True, pty=True, ports=True, signals=True, guest_clock=True)
        found = msgspec.structs.replace(found, build_network="open" in common.network)
        return with_limits(found, *own)

    async def _begin(self, container: Container, id: str, snapshot: Snapshot | None, lease_s: float) -> GvisorGuestHandle:
        async def dispose() -> None:
            self.forget(handle)
            await handle.remove()

        start = container.start
        link = await begun(container)
        handle = GvisorGuestHandle(
            self,
            container,
            snapshot,
            lease_s,
            link,
            id=id,
            address=self.address,
            capabilities=self._capabilities,
            spec=start.spec,
            image_env=bundle.environment(start),
            cwd=start.workdir,
            user=start.user,
            dispose=dispose,
        )
        container.on_lost = link.fail
        try:
            await link.greeted()
        except SandboxLost as error:
            await finish(handle.close())
            raise CreateError(f"the sandbox did not start: {error}") from None
        except BaseException:
            await finish(handle.close())
            raise
        return handle
