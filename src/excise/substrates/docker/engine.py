"""The daemon, as everything in this package talks to it: one client, made at first use, and its refusals sorted."""

# pyright: reportUnknownMemberType=false
# aiodocker's keyword arguments and some of its answers have no types; here, and only here, they get them.

import errno
import json
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from excise.errors import CapacityError, CreateError, SandboxLost, SpecError, SubstrateError
from excise.guestless.inside import Start
from excise.substrates.docker.attached import AttachedCarrier
from excise.substrates.docker.connection import ExecConnection, ExecRefused
from excise.substrates.docker.container import OWNED, listed, renewed_name
from excise.substrates.docker.endpoint import Endpoint, resolve

if TYPE_CHECKING:
    from aiodocker import Docker
    from aiodocker.containers import DockerContainer

# No key a program is likely to be sent: by default Docker takes ctrl-p ctrl-q out of a terminal's input and hangs up.
T = TypeVar("T")
_DETACH_KEYS = "ctrl-^,ctrl-],ctrl-^,ctrl-],ctrl-^"
_FREEZES = 20
_NO_CONNECTION = 900  # aiodocker's own status, beside HTTP's
GOING = ("unrecognized image ID", "layer does not exist")
"""What the daemon says of an image that is being removed at the same moment."""


class Engine:
    """A client of one daemon."""

    def __init__(self, host: str | None) -> None:
        self._host = host
        self._docker: Docker | None = None
        self.endpoint: Endpoint = Endpoint(url="", named_by="")
        self.version: dict[str, Any] = {}

    async def docker(self) -> "Docker":
        """The client; the first call finds the daemon and asks its version."""
        if self._docker is not None:
            return self._docker
        from aiodocker import Docker  # noqa: PLC0415 - 0.2 s that `import excise` should not pay
        from aiohttp import BaseConnector, TCPConnector, UnixConnector  # noqa: PLC0415 - as above

        self.endpoint = resolve(self._host)
        tls = self.endpoint.tls()
        # No limit on connections: each is one request in flight, and a sandbox must not wait for another's.
        connector: BaseConnector
        if self.endpoint.socket is not None:
            connector, url = UnixConnector(self.endpoint.socket, limit=0), "unix://localhost"
        else:
            connector = TCPConnector(limit=0) if tls is None else TCPConnector(limit=0, ssl=tls)
            url = ("http" if tls is None else "https") + "://" + self.endpoint.url.partition("://")[2]
        docker = Docker(url=url, connector=connector)
        try:
            with self.refusals():
                version = await docker.version()
        except BaseException:
            await docker.close()
            await connector.close()
            raise
        if self._docker is not None:  # another task was faster
            await docker.close()
            await connector.close()
        else:
            self._docker, self.version = docker, version
        return self._docker

    def container(self, id: str) -> "DockerContainer":
        """The container called `id`, without asking whether it is there."""
        assert self._docker is not None
        return self._docker.containers.container(id)

    async def info(self) -> Mapping[str, Any]:
        docker = await self.docker()
        with self.refusals():
            return cast(Mapping[str, Any], await docker.system.info())

    async def summaries(self, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        """Id, names, labels and age of the containers that carry all of these, running or not."""
        docker = await self.docker()
        with self.refusals():
            found = await docker.containers.list(
                all="true", filters=json.dumps({"label": [f"{k}={v}" for k, v in labels.items()]})
            )
        return [{key: entry[key] for key in ("Id", "Names", "Labels", "Created")} for entry in found]

    async def images(self, label: str) -> list[dict[str, Any]]:
        """Id, names and labels of the images that carry this label with a value."""
        docker = await self.docker()
        with self.refusals():
            found = cast("list[dict[str, Any]]", await docker.images.list(filters={"label": [label]}, all="true"))
        return [entry for entry in found if (entry.get("Labels") or {}).get(label)]

    async def show(self, id: str) -> dict[str, Any]:
        return await self.container(id).show()

    async def start(self, id: str) -> None:
        with self.refusals():
            await self.container(id).start()

    async def begin(self, id: str) -> None:
        """Start the next container of a sandbox: if that fails, the sandbox is lost."""
        with self.losses():
            await self.container(id).start()

    async def rename(self, id: str, name: str) -> None:
        await self.container(id).rename(name)

    async def exec(self, container_id: str, start: Start) -> ExecConnection:
        """Start a program in a container and take its connection."""
        docker = await self.docker()
        with self.losses():
            made = await self.container(container_id).exec(
                start.argv,
                stdin=True,
                tty=start.terminal,
                user=start.user,
                environment=dict(start.env),
                detach_keys=_DETACH_KEYS if start.terminal else None,
            )

            async def resize(rows: int, columns: int) -> None:
                with self.losses():
                    await made.resize(h=rows, w=columns)

            path = f"/{docker.api_version}/exec/{made.id}/start"
            return await ExecConnection.open(self.endpoint, path, id=made.id, terminal=start.terminal, resize=resize)

    async def attach(self, container_id: str) -> AttachedCarrier:
        """The stdin and stdout of a container's PID 1. The first to hang up closes its stdin."""
        docker = await self.docker()
        path = f"/{docker.api_version}/containers/{container_id}/attach?stream=1&stdin=1&stdout=1&stderr=1"
        with self.refusals():
            return await AttachedCarrier.open(self.endpoint, path)

    async def unpack(self, container_id: str, path: str, tar: bytes) -> None:
        """Unpack a tar into a container, which need not have been started."""
        with self.refusals():
            await self.container(container_id).put_archive(path, tar)

    async def renew(self, container_id: str, lease_s: float) -> None:
        with self.losses():
            shown = await self.show(container_id)
            await self.rename(container_id, renewed_name(shown["Name"], time.time() + lease_s))

    async def alive(self, container_id: str) -> None:
        """Raise SandboxLost unless it runs."""
        with self.losses():
            state: Mapping[str, Any] = (await self.show(container_id))["State"]
        if not state.get("Running") or state.get("Paused") or state.get("Dead"):
            raise SandboxLost(f"the sandbox's container does not run: it is {state.get('Status', 'gone')}")

    async def update(self, container_id: str, resources: Mapping[str, Any]) -> None:
        """Change what a running container may use."""
        from aiodocker import DockerError  # noqa: PLC0415 - as above

        docker = await self.docker()
        url = f"{docker.docker_host}/{docker.api_version}/containers/{container_id}/update"
        with self.losses():
            async with docker.session.post(url, json=dict(resources)) as response:
                said = msgspec.json.decode(await response.read(), type=dict[str, Any])
                if response.status == 400:
                    raise SpecError(f"the Docker daemon does not take these limits: {said.get('message')}")
                if response.status >= 300:
                    raise DockerError(response.status, said.get("message", ""))

    async def pause(self, container_id: str) -> None:
        with self.losses():
            await _frozen(lambda: self.container(container_id).pause())

    async def resume(self, container_id: str) -> None:
        with self.losses():
            await self.container(container_id).unpause()

    async def kill(self, container_id: str) -> None:
        """End every process of a container, paused or not; they are dead on return. One that is gone is fine."""
        from aiodocker import DockerError  # noqa: PLC0415 - as above

        with self.losses():
            try:
                await self.container(container_id).kill()
            except DockerError as error:
                if error.status not in (404, 409):  # 409: it does not run any more
                    raise

    async def commit(self, container_id: str, repository: str, tag: str, config: dict[str, Any]) -> str:
        """A container's files as an image, taken while its processes stand still; the image's id."""
        with self.losses():
            commit = self.container(container_id).commit
            made = await _frozen(lambda: commit(repository=repository, tag=tag, config=config))
        return cast(str, made["Id"])

    async def collect(self) -> tuple[str, ...]:
        """Remove the containers of ours whose lease ran out, and say which."""
        found = [(summary["Id"], listed(summary)) for summary in await self.summaries({OWNED: "1"})]
        expired = [one for one in found if one[1].lease_left_s is not None and one[1].lease_left_s < 0]
        for container_id, _ in expired:
            await self.remove(container_id)
        return tuple(sandbox.id for _, sandbox in expired)

    async def get(self, path: str, params: dict[str, str] | None = None) -> bytes | None:
        """What the daemon answers to a request aiodocker has no method for; None if there is no such thing."""
        docker = await self.docker()
        url = f"{docker.docker_host}/{docker.api_version}/{path}"
        with self.losses():
            async with docker.session.get(url, params=params) as response:
                said = await response.read()
                if response.status < 400:
                    return said
                if response.status == 404 or any(word.encode() in said for word in GOING):
                    return None
                raise SandboxLost(f"the Docker daemon said: {said.decode('utf-8', 'replace').strip()}")

    async def post(self, path: str, *, params: dict[str, str], data: Any) -> Any:
        """A request aiodocker has no method for, with its answer's last JSON document."""
        docker = await self.docker()
        url = f"{docker.docker_host}/{docker.api_version}/{path}"
        async with docker.session.post(url, params=params, data=data) as response:
            text = await response.read()
            lines = text.splitlines() or [b"{}"]
            if response.status >= 400:
                said = text.decode("utf-8", "replace").strip() or f"{response.status} {response.reason}"
                raise SubstrateError(f"the Docker daemon said: {said}")
            return msgspec.json.decode(lines[-1])

    async def remove(self, name: str) -> None:
        """Remove a container, by name or id, with its volumes; one that is not there is fine. It is gone on return."""
        from aiodocker import DockerError  # noqa: PLC0415 - as above

        if self._docker is None:
            return
        with self.refusals():
            try:
                await self.container(name).delete(force=True, v=True)
            except DockerError as error:
                if error.status == 409:  # somebody else is removing it
                    await self._gone(name)
                elif error.status != 404:
                    raise

    async def _gone(self, name: str) -> None:
        from aiodocker import DockerError  # noqa: PLC0415 - as above

        try:
            await self.container(name).wait(condition="removed")
        except DockerError as error:
            if error.status != 404:
                raise

    async def close(self) -> None:
        docker, self._docker = self._docker, None
        if docker is not None:
            await docker.close()
            await docker.connector.close()

    # ---- refusals

    @contextmanager
    def refusals(self) -> Generator[None]:
        """While no sandbox is there yet: what the daemon refuses is a SubstrateError or a SpecError."""
        from aiodocker import DockerError  # noqa: PLC0415 - as above
        from aiohttp import ClientError  # noqa: PLC0415 - as above

        try:
            yield
        except DockerError as error:
            raise self._refusal(error.status, error.message, error) from None
        except ClientError as error:
            raise self._unreachable(error) from None

    @contextmanager
    def losses(self) -> Generator[None]:
        """Under a sandbox: whatever the daemon refuses, the sandbox is lost."""
        from aiodocker import DockerError  # noqa: PLC0415 - as above
        from aiohttp import ClientError  # noqa: PLC0415 - as above

        try:
            yield
        except DockerError as error:
            raise self._loss(error.status, error.message) from None
        except ExecRefused as error:
            raise self._loss(error.status, str(error)) from None
        except (ClientError, OSError) as error:
            raise self._silence(error) from None

    def _silence(self, reason: object) -> SandboxLost:
        return SandboxLost(f"the Docker daemon at {self.endpoint.url} does not answer any more ({reason})")

    def _loss(self, status: int, message: str) -> Exception:
        if status == _NO_CONNECTION:
            return self._silence(message)
        if status == 409 and "is paused" in message:
            return SpecError("the sandbox is paused: resume it before the next action")
        if status == 404:
            return SandboxLost("the sandbox's container is gone")
        return SandboxLost(f"the Docker daemon said: {message}")

    def _refusal(self, status: int, message: str, error: Exception) -> Exception:
        if status == _NO_CONNECTION:
            return self._unreachable(error.__context__ or error)
        if "no space left on device" in message:
            return CapacityError(f"the Docker daemon's disk is full: `docker system prune` makes room ({message})")
        if status == 400:
            return SpecError(f"the Docker daemon does not take this spec: {message}")
        if not message:
            return SubstrateError(
                f"what answers at {self.endpoint.url} ({self.endpoint.named_by}) is no Docker daemon: it said {status}"
            )
        return CreateError(f"the Docker daemon said: {message}")

    def _unreachable(self, error: BaseException) -> SubstrateError:
        where = f"{self.endpoint.url} ({self.endpoint.named_by})"
        if getattr(error, "errno", None) in (errno.EACCES, errno.EPERM):
            return SubstrateError(
                f"you may not talk to the Docker daemon at {where}: `sudo usermod -aG docker $USER` and log in again, "
                "or set DOCKER_HOST to one that is yours"
            )
        return SubstrateError(
            f"no Docker daemon answers at {where}: start it (`sudo systemctl start docker`) or set DOCKER_HOST"
        )


async def _frozen(asked: Callable[[], Awaitable[T]]) -> T:
    """Ask again where runc gave up: on a busy machine its freezer often does, and has thawed all by then."""
    from aiodocker import DockerError  # noqa: PLC0415 - as above

    for left in reversed(range(_FREEZES)):
        try:
            return await asked()
        except DockerError as error:
            if not left or "unable to freeze" not in str(error.message):
                raise
    raise AssertionError
