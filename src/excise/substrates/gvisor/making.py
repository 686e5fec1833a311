"""What both paths into a gVisor sandbox share: which runsc, what it can do here, and how a container comes to be."""

import asyncio
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from excise.action import Exec
from excise.errors import CreateError, ExciseError, SandboxLost, SubstrateError
from excise.handles import finish
from excise.host.directories import remove
from excise.host.sandboxes import OnThisMachine, Sandboxes
from excise.network.client import Proxies, phases
from excise.spec import Spec
from excise.storage.image import hold
from excise.substrate import Capabilities, Handle, Snapshot, require
from excise.substrates.gvisor import bundle, groups, program, way_out
from excise.substrates.gvisor.bundle import Start
from excise.substrates.gvisor.container import Container
from excise.substrates.gvisor.program import PLATFORMS, Platform, Runsc
from excise.substrates.gvisor.snapshots import Snapshots

H = TypeVar("H", bound=Handle)
_KIND = "gvisor"
_TRIAL_S = 20.0
_TRIAL_LEASE_S = 60.0
REMEDY = (
    "as root it needs mount and overlayfs; as an ordinary user, user namespaces that may mount: "
    "sysctl -w user.max_user_namespaces=15000 kernel.apparmor_restrict_unprivileged_userns=0"
)


class Gvisor(OnThisMachine[H]):
    """Containers of runsc that end with the process that made them."""

    address: str
    _guest: Path | None = None
    _remedy = REMEDY

    def __init__(self, name: str, runsc: str | None, platform: Platform | None) -> None:
        options = "&".join(f"{key}={value}" for key, value in (("runsc", runsc), ("platform", platform)) if value)
        self.address = f"{name}?{options}" if options else name
        self._named = runsc
        self._platforms: tuple[Platform, ...] = PLATFORMS if platform is None else (platform,)
        self._sandboxes = Sandboxes[H](_KIND)
        self._snapshots = Snapshots(self.address)
        self._proxies = Proxies()
        self._probing = asyncio.Lock()
        self._runsc: Runsc | None = None
        self._capabilities = Capabilities()

    # ---- what is there

    async def probe(self) -> Capabilities:
        """Found by making a sandbox on one platform after the other, until in one `true` is true."""
        path = program.find(self._named)
        first = await program.known(path, self._platforms[0])
        why: ExciseError | None = None
        for platform in self._platforms:
            runsc = msgspec.structs.replace(first, platform=platform)
            try:
                await self._try(runsc)
            except (SubstrateError, SandboxLost) as error:
                why = error
                continue
            self._runsc = runsc
            limited = os.geteuid() == 0 and await asyncio.to_thread(groups.found)
            self._capabilities = self._able(runsc, _common(runsc, limited=limited, wired=await self._wires(runsc)))
            return self._capabilities
        raise SubstrateError(f"{path} ({first.version}) makes no sandbox here: {why}; {self._remedy}")

    def _able(self, runsc: Runsc, common: Capabilities) -> Capabilities:
        """What this path adds."""
        raise NotImplementedError

    async def _try(self, runsc: Runsc) -> None:
        async def make(directory: Path) -> H:
            return await self._made(runsc, directory, Spec(), None, _TRIAL_LEASE_S)

        trial = await self._sandboxes.once(f"probe-{os.urandom(8).hex()}", _TRIAL_S, make)
        try:
            seen = await trial.run(Exec(("true",), timeout_s=_TRIAL_S))
        finally:
            await finish(trial.close())
        if not seen.ok:
            raise SubstrateError(f"`true` failed in it: {seen.text.strip() or seen.end.value}")

    async def _wires(self, runsc: Runsc) -> bool:
        """Whether a sandbox can have a way out here: by making all of one but the sandbox."""
        if any(shutil.which(program) is None for program in way_out.PROGRAMS):
            return False
        directory = self._sandboxes.place()
        try:
            directory.mkdir(mode=0o700)
            made = await self.container(runsc, directory, Spec(network="open"), None, _TRIAL_LEASE_S)
        except (SubstrateError, SandboxLost, OSError):
            await asyncio.to_thread(remove, str(directory))
            return False
        await made.close()
        return True

    async def found(self) -> Runsc:
        async with self._probing:
            if self._runsc is None:
                await self.probe()
        assert self._runsc is not None
        return self._runsc

    # ---- sandboxes

    async def create(
        self, start: Spec | Snapshot, *, deadline_s: float, lease_s: float, labels: Mapping[str, str], request_id: str
    ) -> H:
        runsc = await self.found()
        spec, snapshot = (start, None) if isinstance(start, Spec) else (start.spec, start)
        require(spec, self._capabilities, self.address)
        bundle.require_places(spec)

        async def make(directory: Path) -> H:
            return await self._made(runsc, directory, spec, snapshot, lease_s)

        return await self._sandboxes.once(request_id, deadline_s, make)

    async def _made(self, runsc: Runsc, directory: Path, spec: Spec, snapshot: Snapshot | None, lease_s: float) -> H:
        container = await self.container(runsc, directory, spec, snapshot, lease_s)
        try:
            return await self._begin(container, directory.name, snapshot, lease_s)
        except BaseException:
            await finish(container.close())
            raise

    async def container(
        self, runsc: Runsc, directory: Path, spec: Spec, snapshot: Snapshot | None, lease_s: float
    ) -> Container:
        """One that is prepared in `directory`, which goes with it; nothing runs in it yet."""
        image, pin = await hold(spec.image)
        try:
            upper = None if snapshot is None else self._snapshots.upper(snapshot, image.key)
            network = phases(spec, built=snapshot is not None)
            spec, env = network.dressed(spec, image.env, way_out.HOST)
            image = msgspec.structs.replace(image, env=env)
            start = Start(spec=spec, image=image, guest=self._guest, upper=upper, network=network)
        except BaseException:
            pin.close()
            raise
        made = await Container.prepare(self._sandboxes.link, runsc, directory, start, lease_s=lease_s, pin=pin)
        try:
            await made.open_way(self._proxies)
        except BaseException:
            await finish(made.close())
            raise
        return made

    async def another(self, spec: Spec, snapshot: Snapshot, lease_s: float) -> Container:
        """The next container of a sandbox that is reset."""
        runsc = await self.found()
        directory = self._sandboxes.place()
        directory.mkdir(mode=0o700)
        try:
            return await self.container(runsc, directory, spec, snapshot, lease_s)
        except BaseException as error:
            if isinstance(error, OSError):
                raise CreateError(f"no sandbox could be made in {directory.parent}: {error.strerror}") from None
            raise

    async def _begin(self, container: Container, id: str, snapshot: Snapshot | None, lease_s: float) -> H:
        """Start a prepared container, and be its handle."""
        raise NotImplementedError

    # ---- care

    @property
    def states(self) -> Snapshots:
        return self._snapshots

    def forget(self, handle: H) -> None:
        self._sandboxes.forget(handle)

    async def snapshots(self) -> tuple[Snapshot, ...]:
        return await self._snapshots.list()

    async def discard(self, snapshot: Snapshot) -> None:
        await self._snapshots.discard(snapshot)

    async def collect(self) -> tuple[str, ...]:
        taken = (*await super().collect(), *await self._snapshots.collect())
        await asyncio.to_thread(groups.collect)
        return taken

    async def close(self) -> None:
        await super().close()
        await self._proxies.close()
        await self._snapshots.close()


def _common(runsc: Runsc, *, limited: bool, wired: bool) -> Capabilities:
    """What both paths have."""
    return Capabilities(
        kernel="intercepted",
        isolates=frozenset({"files", "processes", "network", "ipc", "users"}),
        snapshot="files" if runsc.tars else None,
        diff=frozenset({"start", "snapshot"}) if runsc.tars else frozenset(),
        adopts=frozenset({"secrets"}),
        stream=True,
        users=True,
        pause=True,
        mounts=True,
        background=True,
        limits=frozenset({"cpus"} if limited else ()),
        network=frozenset({"none", "allow", "open"} if wired else {"none"}),
        versions={"runsc": runsc.version, "platform": runsc.platform},
    )


def with_limits(capabilities: Capabilities, *names: str) -> Capabilities:
    return msgspec.structs.replace(capabilities, limits=capabilities.limits | frozenset(names))
