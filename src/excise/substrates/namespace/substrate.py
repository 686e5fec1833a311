"""`namespace` as a Substrate."""

import asyncio
import errno
import os
import platform
import socket
import uuid
from collections.abc import Mapping
from typing import Literal, NamedTuple

from excise.adoption import ABILITY
from excise.errors import CapacityError, CreateError, SpecError
from excise.guest.carrier import SocketCarrier, pair
from excise.guest.link import Link
from excise.handles import finish
from excise.network.client import PORT, Proxies, phases
from excise.requests import EndsWithItsMaker, Requests
from excise.spec import Spec
from excise.storage.image import Image, hold
from excise.storage.pins import Pin
from excise.storage.trees.storekeeper import Storekeeper
from excise.substrate import Capabilities, Snapshot, Term, require, unsupported
from excise.substrates.namespace import cgroups, plan, request
from excise.substrates.namespace.building import Builder
from excise.substrates.namespace.handle import NamespaceHandle
from excise.substrates.namespace.launcher import Launcher
from excise.substrates.namespace.layers import Stack
from excise.substrates.namespace.limiting import Limiting
from excise.substrates.namespace.place import Place
from excise.substrates.namespace.roots import Roots
from excise.substrates.namespace.saved import Saved
from excise.substrates.namespace.shell import Shells
from excise.substrates.namespace.snapshots import Snapshots
from excise.substrates.namespace.states import Shared, Start
from excise.substrates.namespace.way_out import WayOut

_SCRATCH_BYTES = 1 << 18
_ALL_UIDS = 65536
_BUILD_LEASE_S = 86400.0


class _Found(NamedTuple):
    """What one launcher's trial and the control groups' said."""

    capabilities: Capabilities
    groups: cgroups.Groups


class NamespaceSubstrate(EndsWithItsMaker[NamespaceHandle]):
    """Sandboxes of user, mount, pid, net, ipc, uts and cgroup namespaces, made by a launcher of this substrate's own."""

    def __init__(self, *, sudo: bool = False, prove: bool = False) -> None:
        """`sudo`: programs inside may gain privileges by set-user-ID files, as images that use sudo need; else they may not.

        `prove`: every reset and every sandbox of a snapshot is proved to begin with the state it should, by digests.
        """
        options = "&".join(f"{name}=1" for name, chosen in (("sudo", sudo), ("prove", prove)) if chosen)
        self.address = f"namespace?{options}" if options else "namespace"
        self._sudo = sudo
        self._prove = prove
        self._requests = Requests[NamespaceHandle](self.address)
        self._snapshots = Snapshots(self.address)
        self._storekeeper = Storekeeper()
        self._saved = Saved(self.address, self._storekeeper, self._image)
        self._builder = Builder(self._storekeeper)
        self._proxies = Proxies()
        self._launcher: Launcher | None = None
        self._found: _Found | None = None
        self._images: dict[str, Image] = {}
        self._pins: dict[str, Pin] = {}
        self._shells = Shells()
        self._scratch = bytearray(_SCRATCH_BYTES)

    async def probe(self) -> Capabilities:
        """Found by trying: a sandbox is made and thrown away."""
        trial = await self.create(Spec(), deadline_s=30, lease_s=60, labels={}, request_id=uuid.uuid4().hex)
        await trial.close()
        return (await self._find(self._running())).capabilities

    # ---- create

    async def create(
        self, start: Spec | Snapshot, *, deadline_s: float, lease_s: float, labels: Mapping[str, str], request_id: str
    ) -> NamespaceHandle:
        return await self._requests.once(request_id, deadline_s, lambda: self._make(start, lease_s))

    async def _make(self, begin: Spec | Snapshot, lease_s: float) -> NamespaceHandle:
        launcher = self._running()
        found = self._found or await self._find(launcher)
        spec = begin.spec if isinstance(begin, Snapshot) else begin
        require(spec, found.capabilities, self.address)
        _require_sources(spec)
        if isinstance(begin, Spec):
            start = await self._begun_with(launcher, found, Start(spec, await self._image(spec.image)))
            return await self._over(launcher, found, start, Stack(), lease_s)
        kept = self._snapshots.find(begin) or await self._saved.find(begin)
        try:
            start = Start(spec, kept.image, kept.snapshot, proof=kept.proof, hold=kept.hold)
            return await self._over(launcher, found, start, Stack(kept.stack.layers), lease_s)
        finally:
            kept.release()

    async def _begun_with(self, launcher: Launcher, found: _Found, start: Start) -> Start:
        """Over the layers of the spec's steps, where what a sandbox wrote can be had."""
        if found.capabilities.snapshot is None:
            return start
        terms = {"users": str(found.capabilities.users), "sudo": str(self._sudo)}
        return await self._builder.start(
            start.spec, start.image, lambda alone: self._over(launcher, found, alone, Stack(), _BUILD_LEASE_S), terms=terms
        )

    async def _over(self, launcher: Launcher, found: _Found, start: Start, stack: Stack, lease_s: float) -> NamespaceHandle:
        """A sandbox over `stack`, which goes with it."""
        try:
            return await self._made(launcher, found, start, stack, lease_s)
        except BaseException:
            stack.release()
            raise

    async def _made(self, launcher: Launcher, found: _Found, start: Start, stack: Stack, lease_s: float) -> NamespaceHandle:
        spec, image = start.spec, start.image
        network = phases(spec, built=start.snapshot is not None or start.built)
        adoptable = ABILITY in spec.needs
        listens = adoptable or (network.build.mode, network.run.mode) != ("none", "none")
        name = launcher.name()
        asked = plan.plan(
            spec,
            image,
            layers=stack.ids,
            cgroups=found.groups.plan(spec.limits, name, launcher.home, every=adoptable),
            sudo=self._sudo,
            listen_port=PORT if listens else None,
        )
        spec, env = network.dressed(spec, image.env)
        link, place = await self._begun(launcher, asked, self._shells.of(image))
        roots = Roots(launcher, place, asked, stack, start.image)
        try:
            handle = self._handle(link, launcher, place, roots, name=name, spec=spec, env=env, lease_s=lease_s, start=start)
        except BaseException:  # a variable that cannot be said
            link.close()
            await finish(launcher.close(place))
            raise
        try:
            await place.ready
            if (listener := place.take_listener()) is not None:
                await handle.open_door(listener, network, keep=adoptable)
        except BaseException:
            await finish(handle.close())
            raise
        return handle

    async def _begun(self, launcher: Launcher, asked: request.Create, shell: int | None) -> tuple[Link, Place]:
        """A sandbox in the making, and our end of the link to its guest."""
        ours, theirs = _link_ends()
        with theirs:
            try:
                place = await launcher.create(asked, theirs.fileno(), shell)
            except BaseException:
                ours.close()
                raise
        return Link(SocketCarrier(ours, self._scratch)), place

    def _handle(
        self,
        link: Link,
        launcher: Launcher,
        place: Place,
        roots: Roots,
        *,
        name: str,
        spec: Spec,
        env: Mapping[str, str],
        lease_s: float,
        start: Start,
    ) -> NamespaceHandle:
        """The guest is greeted at once: the greeting waits in the link while it comes to be."""
        assert self._found is not None
        (capabilities, groups), image = self._found, start.image
        places = groups.places(spec.limits, name, launcher.home, every=ABILITY in spec.needs)

        async def dispose() -> None:
            self._requests.forget(handle)
            await handle.shut_door()
            await launcher.close(place)
            await handle.leave()

        handle = NamespaceHandle(
            link,
            id=name,
            address=self.address,
            capabilities=capabilities,
            spec=spec,
            image_env=env,
            cwd=plan.workdir(spec, image),
            user=plan.user(spec, image, users=capabilities.users),
            dispose=dispose,
            lease_s=lease_s,
            start=start,
            roots=roots,
            shared=Shared(self._snapshots, self._saved, self._storekeeper, self._prove),
            way=WayOut(self._proxies, link.fail),
            limiting=Limiting(groups, places, spec.limits),
        )
        return handle

    def _running(self) -> Launcher:
        """The launcher; another one if it died, for those who come after."""
        if self._launcher is not None and self._launcher.is_elsewhere:
            raise RuntimeError(f"this {self.address} was opened in another event loop: connect to it again in this one")
        if self._launcher is None or self._launcher.dead:
            self._snapshots.forget()
            self._launcher = Launcher()
            self._found = None
        return self._launcher

    async def _find(self, launcher: Launcher) -> _Found:
        groups, hello = await asyncio.gather(asyncio.to_thread(cgroups.find), launcher.hello())
        self._found = _Found(_capabilities(hello, groups), groups)
        return self._found

    async def _image(self, name: str) -> Image:
        """Looked up once while the substrate is open, and again if it was removed since."""
        image = self._images.get(name)
        if image is None or not image.root.exists():
            image, self._pins[name] = await hold(name)  # what sandboxes lie over is not collected while we are open
            self._images[name] = image
        return image

    # ---- snapshots

    async def snapshots(self) -> tuple[Snapshot, ...]:
        """Those that were taken here, the oldest first, and those that anybody kept."""
        if self._found is not None and self._found.capabilities.snapshot is None:  # a kernel that is too old
            raise unsupported(self.address, "snapshots")
        return (*self._snapshots.all(), *self._saved.list())

    async def discard(self, snapshot: Snapshot) -> None:
        self._snapshots.drop(snapshot.id)
        self._saved.delete(snapshot)

    # ---- the end

    async def collect(self) -> tuple[str, ...]:
        """Processes and mounts go with their owner; its control groups may be left, and saved layers nobody needs any more."""
        return (*await asyncio.to_thread(cgroups.collect), *await self._builder.collect())

    async def close(self) -> None:
        """Close every sandbox, and end the launcher and the proxy."""
        launcher, self._launcher = self._launcher, None
        if launcher is not None and launcher.is_elsewhere:
            launcher.abandon()  # and with it every sandbox and layer; what waits for them waits in a loop that is over
            self._builder.abandon()
            self._storekeeper.abandon()
            self._shells.close()
            self._let_go()
            return
        await self._requests.close()
        self._snapshots.forget()
        if launcher is not None:
            await launcher.end()
        await self._builder.close()
        await self._storekeeper.close()
        await self._proxies.close()
        self._shells.close()
        self._let_go()

    def _let_go(self) -> None:
        for pin in self._pins.values():
            pin.close()
        self._pins.clear()
        self._images.clear()


def _capabilities(hello: request.Answer, groups: cgroups.Groups) -> Capabilities:
    # Without a private range for each, root inside is whoever started us outside, and all our sandboxes share their ids: files,
    # processes and the rest are kept apart by the other namespaces, users are not.
    kept_apart: set[Literal["files", "processes", "network", "ipc", "users"]] = {"files", "processes", "network", "ipc"}
    if not hello.number(request.TAG_ROOTLESS):
        kept_apart.add("users")
    has_layers = bool(hello.number(request.TAG_LAYERS))
    return Capabilities(
        isolates=frozenset(kept_apart),
        snapshot="files" if has_layers else None,
        diff=frozenset({"start", "snapshot"}) if has_layers else frozenset(),
        keeps_steps=has_layers,
        adopts=frozenset({"network", "secrets", *_adoptable(groups)}),
        stream=True,
        sessions=True,
        pty=True,
        users=hello.number(request.TAG_USERS) == _ALL_UIDS,
        ports=True,
        mounts=True,
        devices=True,
        background=True,
        signals=True,
        guest_clock=True,
        limits=groups.enforced | {"disk_bytes", "inodes"},
        network=frozenset({"none", "allow", "open"}),
        build_network=True,
        versions={"linux": platform.release()},
    )


def _adoptable(groups: cgroups.Groups) -> list[Term]:
    """The limits of control groups. What a disk holds is in a tmpfs that the sandbox alone can reach."""
    terms: tuple[Term, ...] = ("memory_bytes", "cpus", "pids")
    return [term for term in terms if term in groups.enforced]


def _link_ends() -> tuple[socket.socket, socket.socket]:
    try:
        return pair()
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise CapacityError("this process has no descriptor left for another sandbox: raise `ulimit -n`") from None
        raise CreateError(f"no connection to a guest could be made: {error.strerror}") from None


def _require_sources(spec: Spec) -> None:
    """A path that is not there is a mistake in the spec, and said so before anything is made."""
    for path in (*(mount.source for mount in spec.mounts), *spec.devices):
        if not os.path.exists(path):  # noqa: PTH110 - as the launcher will look for it
            raise SpecError(f"{path} is not on this machine: the spec cannot show it inside")
