"""`docker+guest`: the same containers, with the guest as their PID 1 and its stdin and stdout as the link."""

import io
import tarfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from excise.errors import SpecError
from excise.guest.handle import GuestHandle
from excise.guest.link import Link
from excise.guest.programs import program
from excise.handles import finish, make_ready
from excise.requests import EndsWithItsMaker, Requests
from excise.session_state import give_sessions, read_sessions
from excise.spec import Spec
from excise.storage.background import to_end
from excise.substrate import Capabilities, Change, Snapshot, require
from excise.substrates.docker import abilities, container
from excise.substrates.docker.changes import compared
from excise.substrates.docker.engine import Engine
from excise.substrates.docker.images import Images
from excise.substrates.docker.lives import Lives
from excise.substrates.docker.snapshots import Snapshots

Prepare = Callable[[str], Awaitable[None]]
_GUEST = "/.excise-guest"
# What Docker gives a program whose image says nothing of it.
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class DockerGuestHandle(GuestHandle):
    """A container whose PID 1 is the guest."""

    def __init__(self, engine: Engine, lives: Lives, prepare: Prepare, *args: Any, **more: Any) -> None:
        """`prepare`: what a container still needs before it is started."""
        super().__init__(*args, **more)
        self._engine = engine
        self._lives = lives
        self._prepare = prepare

    async def _make_ready(self) -> None:
        if self._adopted:
            await super()._make_ready()
            return
        await make_ready(self, self._lives.left_to_do(), self._lives.first())
        if self._lives.start is not None:
            await give_sessions(self, self._lives.start.sessions)

    async def _take_on(self, spec: Spec) -> None:
        await self._lives.adopt(spec)
        await super()._take_on(spec)

    # ---- states

    async def snapshot(self, *, keep_s: float | None = None) -> Snapshot:
        self.link.check()
        sessions = await read_sessions(self, self.sessions, self.base, self._spec)
        # The container's user is root, for the guest: what is made of the snapshot must have that of the actions.
        return await self._lives.snapshot(self._user or "0:0", sessions, keep_s=keep_s)

    async def reset(self, snapshot: Snapshot) -> None:
        """Another container, and another link to it, under the same handle. Given up half-way, the sandbox is lost."""
        async with self._readying:
            self.link.check()
            made = await self._lives.prepare(snapshot)
            await self._prepare(made)
            link = Link(await self._engine.attach(made))
            try:
                self.link.close()
                await self._lives.turn(snapshot)
                self.greet(link)
                self._adopted = False  # it is another container, which has answered nothing yet
                await self._make_ready()
            except BaseException:
                link.close()
                raise

    async def diff(self, since: Snapshot | None, *, contents: bool = False) -> tuple[Change, ...]:
        self.link.check()
        self._lives.refuse(since, self._address)
        return await compared(self._lives.snapshots, self, self._lives.container, contents=contents)

    # ---- life

    async def pause(self) -> None:
        self.link.check()
        await self._engine.pause(self._lives.container)
        self.link.paused = True

    async def resume(self) -> None:
        self.link.check()
        await self._engine.resume(self._lives.container)
        self.link.paused = False

    async def renew(self, lease_s: float) -> None:
        self.link.check()
        await self._lives.renew(lease_s)


class DockerGuestSubstrate(EndsWithItsMaker[DockerGuestHandle]):
    """Containers of a Docker daemon that end with the process that made them."""

    def __init__(self, *, host: str | None = None, runtime: str | None = None) -> None:
        options = "&".join(f"{key}={value}" for key, value in (("host", host), ("runtime", runtime)) if value)
        self.address = f"docker+guest?{options}" if options else "docker+guest"
        self._runtime = runtime
        self._engine = Engine(host)
        self._images = Images(self._engine)
        self._snapshots = Snapshots(self._engine, self._images, self.address)
        self._requests = Requests[DockerGuestHandle](self.address)
        self._capabilities: Capabilities | None = None
        self._program = Path()
        self._binds = True

    async def probe(self) -> Capabilities:
        info = await self._engine.info()
        found = abilities.find(self._engine, info, self._runtime)
        self._program = program("excise-guest", info.get("Architecture"))
        self._binds = self._engine.endpoint.here
        self._capabilities = msgspec.structs.replace(found, sessions=True, ports=True, signals=True, guest_clock=True)
        return self._capabilities

    # ---- create

    async def create(
        self, start: Spec | Snapshot, *, deadline_s: float, lease_s: float, labels: Mapping[str, str], request_id: str
    ) -> DockerGuestHandle:
        return await self._requests.once(request_id, deadline_s, lambda: self._make(start, lease_s, labels, request_id))

    async def _make(
        self, begin: Spec | Snapshot, lease_s: float, labels: Mapping[str, str], request_id: str
    ) -> DockerGuestHandle:
        spec, start = (begin, None) if isinstance(begin, Spec) else (begin.spec, begin)
        capabilities = self._capabilities or await self.probe()
        require(spec, capabilities, self.address)
        prepared = await (self._images.prepare(spec.image) if start is None else self._snapshots.prepared(start))
        name = spec.image if start is None else prepared.reference
        image = await self._images.completed(prepared, name)
        config = container.config(spec, image, labels=labels, lease_s=lease_s, request_id=request_id, runtime=self._runtime)
        made = await self._created(container.name(request_id), config, name)
        lives = Lives(self._snapshots, made, sandbox=made, spec=spec, start=start, lease_s=lease_s)
        try:
            link = Link(await self._engine.attach(made))
            handle = self._handle(lives, link, spec, image, capabilities)
        except BaseException:
            await finish(self._engine.remove(made))
            raise
        try:
            await self._engine.start(made)
        except BaseException:
            await finish(handle.close())
            raise
        return handle

    async def _created(self, name: str, config: dict[str, Any], image: str) -> str:
        """A container with the guest's program in it, not started yet. Given up, nothing of it is left."""
        # By its id, which only a container of our own tells us: the name may be that of another client's.
        made: list[str] = []
        try:
            # To its end: a container whose answer we did not wait for would come into being after we had removed it.
            await to_end(self._create(name, config, image, made))
            await self._complete(made[0])
        except BaseException:
            for id in made:  # noqa: A001 - what a container's id is called
                await finish(self._engine.remove(id))
            raise
        return made[0]

    async def _complete(self, container_id: str) -> None:
        """Where the daemon does not see our files, a container is sent the guest's program."""
        if not self._binds:
            await self._engine.unpack(container_id, "/", _packed(self._program))

    async def _create(self, name: str, config: dict[str, Any], image: str, made: list[str]) -> None:
        """Its program is shown to it from this machine, unless the daemon turns out not to see this machine's files."""
        if self._binds:
            try:
                shown = container.with_guest(config, _GUEST, self._program)
                made.append(await self._images.create_container(name, shown, image))
                return
            except SpecError as error:
                # A daemon reached by a socket on this machine may still be another's: in a container, or a virtual machine.
                if str(self._program) not in str(error):
                    raise
                self._binds = False
        made.append(await self._images.create_container(name, container.with_guest(config, _GUEST, None), image))

    def _handle(
        self, lives: Lives, link: Link, spec: Spec, image: container.Prepared, capabilities: Capabilities
    ) -> DockerGuestHandle:
        async def dispose() -> None:
            self._requests.forget(handle)
            await lives.remove()

        # The guest is greeted at once: the greeting waits in the daemon while the container starts.
        handle = DockerGuestHandle(
            self._engine,
            lives,
            self._complete,
            link,
            id=lives.container,
            address=self.address,
            capabilities=capabilities,
            spec=spec,
            image_env={"PATH": _PATH, "HOSTNAME": lives.container[:12], **image.env},
            cwd=spec.workdir or image.workdir or "/",
            user=spec.user or image.user,
            dispose=dispose,
        )
        return handle

    # ---- the end

    async def collect(self) -> tuple[str, ...]:
        """Containers go with their maker; what outlived its lease all the same is removed."""
        return (*await self._engine.collect(), *await self._snapshots.collect())

    async def snapshots(self) -> tuple[Snapshot, ...]:
        return await self._snapshots.list()

    async def discard(self, snapshot: Snapshot) -> None:
        await self._snapshots.discard(snapshot)

    async def close(self) -> None:
        """Close every sandbox, and the connections to the daemon."""
        await self._requests.close()
        await self._snapshots.settled()
        await self._engine.close()


def _packed(path: Path) -> bytes:
    """The guest's program as a tar that the daemon unpacks at the container's root."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar, path.open("rb") as file:
        member = tarfile.TarInfo(_GUEST.removeprefix("/"))
        member.mode, member.size = 0o755, path.stat().st_size
        tar.addfile(member, file)
    return buffer.getvalue()
