"""Images for the daemon: its own by name, and ours, imported into it once each."""

import asyncio
from typing import Any

import msgspec

from excise.errors import SpecError
from excise.spec import Mount
from excise.storage.image import Image, kind, resolve
from excise.substrates.docker.container import Prepared
from excise.substrates.docker.engine import Engine

SNAPSHOTS = "excise/snapshot"
"""The repository of images that are snapshots; the tag is the snapshot's id."""
_REPOSITORIES = {"host": "host", "built": "base", "tar": "tar"}


class Images:
    """What was prepared already, for one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._prepared: dict[str, Prepared] = {}
        self._importing = asyncio.Lock()

    async def prepare(self, name: str) -> Prepared:
        """The image called `name`, in the daemon. One that only a registry has is never pulled: that takes a `docker pull`."""
        of = kind(name)
        if of == "docker":
            return Prepared(reference=name)
        if name in self._prepared and of != "tar":  # a tar may be another one by now
            return self._prepared[name]
        if of == "host" and not self._engine.endpoint.here:
            raise SpecError(
                f"image 'host' shows this machine's files, and the Docker daemon at {self._engine.endpoint.url} is on "
                "another: use excise/base, or an image that daemon holds"
            )
        image = await resolve(name)
        assert image.tar is not None
        reference = f"excise/{_REPOSITORIES[of]}:{image.digest.removeprefix('sha256:')[:12]}"
        async with self._importing:  # sixty-four creates at once send it once
            if not await self._held(reference):
                await self._import(image, reference)
        self._prepared[name] = Prepared(
            reference=reference,
            env=image.env,
            workdir=image.workdir,
            user=image.user,
            binds=tuple(Mount(host, inside) for host, inside in image.binds),
        )
        return self._prepared[name]

    def forget(self) -> None:
        """Look again: somebody removed an image we had imported."""
        self._prepared.clear()

    async def create_container(self, name: str, config: dict[str, Any], image: str) -> str:
        """A container of the image called `image`, not started yet; its id."""
        from aiodocker import DockerError  # noqa: PLC0415 - 0.2 s that `import excise` should not pay

        docker = await self._engine.docker()
        with self._engine.refusals():
            try:
                return (await docker.containers.create(config, name=name)).id
            except DockerError as error:
                if error.status == 404 and "No such image" in error.message:
                    self.forget()
                    raise missing(image) from None
                raise

    async def completed(self, prepared: Prepared, image: str) -> Prepared:
        """With what the image's own configuration says, where nothing else does."""
        from aiodocker import DockerError  # noqa: PLC0415 - as above

        docker = await self._engine.docker()
        with self._engine.refusals():
            try:
                found = await docker.images.inspect(prepared.reference)
            except DockerError as error:
                if error.status == 404:
                    self.forget()
                    raise missing(image) from None
                raise
        own: dict[str, Any] = found.get("Config") or {}
        env = dict(line.partition("=")[::2] for line in own.get("Env") or ())
        return msgspec.structs.replace(
            prepared,
            env={**env, **prepared.env},
            workdir=prepared.workdir or own.get("WorkingDir") or None,
            user=prepared.user or own.get("User") or None,
        )

    async def _held(self, reference: str) -> bool:
        from aiodocker import DockerError  # noqa: PLC0415 - 0.2 s that `import excise` should not pay

        docker = await self._engine.docker()
        with self._engine.refusals():
            try:
                await docker.images.inspect(reference)
            except DockerError as error:
                if error.status == 404:
                    return False
                raise
        return True

    async def _import(self, image: Image, reference: str) -> None:
        assert image.tar is not None
        repository, _, tag = reference.partition(":")
        with image.tar.open("rb") as tar, self._engine.refusals():
            answer: dict[str, Any] = await self._engine.post(
                "images/create", params={"fromSrc": "-", "repo": repository, "tag": tag}, data=tar
            )
        if "error" in answer:
            raise SpecError(f"the Docker daemon cannot import image {image.name!r}: {answer['error']}")


def missing(name: str) -> SpecError:
    if name.startswith(f"{SNAPSHOTS}:"):
        return SpecError(
            f"the Docker daemon has no snapshot {name.partition(':')[2]} (any more): it was discarded, its lease ran out, or "
            "its image was removed; take another snapshot"
        )
    return SpecError(f"the Docker daemon holds no image {name!r}: `docker pull {name}` fetches it, or use host or excise/base")
