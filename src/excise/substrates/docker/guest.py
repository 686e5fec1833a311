"""`docker+guest`: the same containers, with the guest as their PID 1 and its stdin and stdout as the link."""

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from excise.errors import SpecError
from excise.guest.handle import GuestHandle
from excise.guest.link import Link
from excise.guest.programs import program
from excise.handles import finish
from excise.requests import EndsWithItsMaker, Requests
from excise.spec import Spec
from excise.storage.background import to_end
from excise.substrate import Capabilities, Snapshot, require, unsupported
from excise.substrates.docker import abilities, container
from excise.substrates.docker.engine import Engine
from excise.substrates.docker.images import Images

_GUEST = "/.excise-guest"
# What Docker gives a program whose image says nothing of it.
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class DockerGuestHandle(GuestHandle):
    """A container whose PID 1 is the guest."""

    def __init__(self, engine: Engine, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._engine = engine

    async def pause(self) -> None:
        self.link.check()
        await self._engine.pause(self.id)
        self.link.paused = True

    async def resume(self) -> None:
        self.link.check()
        await self._engine.resume(self.id)
        self.link.paused = False

    async def renew(self, lease_s: float) -> None:
        self.link.check()
        await self._engine.renew(self.id, lease_s)


class DockerGuestSubstrate(EndsWithItsMaker[DockerGuestHandle]):
    """Containers of a Docker daemon that end with the process that made them."""

    def __init__(self, *, host: str | None = None, runtime: str | None = None) -> None:
        options = "&".join(f"{key}={value}" for key, value in (("host", host), ("runtime", runtime)) if value)
        self.address = f"docker+guest?{options}" if options else "docker+guest"
        self._runtime = runtime
        self._engine = Engine(host)
        self._images = Images(self._engine)
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
        if isinstance(start, Snapshot):
            raise unsupported(self.address, "snapshots to start from")
        return await self._requests.once(request_id, deadline_s, lambda: self._make(start, lease_s, labels, request_id))

    async def _make(self, spec: Spec, lease_s: float, labels: Mapping[str, str], request_id: str) -> DockerGuestHandle:
        capabilities = self._capabilities or await self.probe()
        require(spec, capabilities, self.address)
        image = await self._images.completed(await self._images.prepare(spec.image), spec.image)
        config = container.config(spec, image, labels=labels, lease_s=lease_s, request_id=request_id, runtime=self._runtime)
        made = await self._created(container.name(request_id), config, spec.image)
        try:
            link = Link(await self._engine.attach(made))
            handle = self._handle(made, link, spec, image, capabilities)
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
            if not self._binds:
                await self._engine.unpack(made[0], "/", _packed(self._program))
        except BaseException:
            for id in made:  # noqa: A001 - what a container's id is called
                await finish(self._engine.remove(id))
            raise
        return made[0]

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
        self, id: str, link: Link, spec: Spec, image: container.Prepared, capabilities: Capabilities
    ) -> DockerGuestHandle:
        async def dispose() -> None:
            self._requests.forget(handle)
            await self._engine.remove(id)

        # The guest is greeted at once: the greeting waits in the daemon while the container starts.
        handle = DockerGuestHandle(
            self._engine,
            link,
            id=id,
            address=self.address,
            capabilities=capabilities,
            spec=spec,
            image_env={"PATH": _PATH, "HOSTNAME": id[:12], **image.env},
            cwd=spec.workdir or image.workdir or "/",
            user=spec.user or image.user,
            dispose=dispose,
        )
        return handle

    # ---- the end

    async def collect(self) -> tuple[str, ...]:
        """Containers go with their maker; what outlived its lease all the same is removed."""
        return await self._engine.collect()

    async def close(self) -> None:
        """Close every sandbox, and the connections to the daemon."""
        await self._requests.close()
        await self._engine.close()


def _packed(path: Path) -> bytes:
    """The guest's program as a tar that the daemon unpacks at the container's root."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar, path.open("rb") as file:
        member = tarfile.TarInfo(_GUEST.removeprefix("/"))
        member.mode, member.size = 0o755, path.stat().st_size
        tar.addfile(member, file)
    return buffer.getvalue()
