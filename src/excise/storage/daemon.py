"""An image the Docker daemon holds, as a root file system in the cache, with its ENV, WORKDIR and USER."""

import asyncio
import os
import re
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from excise.errors import SpecError, SubstrateError
from excise.storage.background import Stop, in_thread, to_end
from excise.storage.store import PATH, Image, Record, make
from excise.storage.unpack import unpack

if TYPE_CHECKING:
    from aiodocker import Docker

_NO_CONNECTION = 900  # aiodocker's own status, beside HTTP's
_REFERENCE = re.compile(r"[a-zA-Z0-9]+(?:(?:[/:@]|[._]{1,2}|-+)[a-zA-Z0-9]+)*")
_OTHERS = "host, excise/base, a root file system's tar (./x.tar)"


async def held(name: str) -> Image:
    """The image `name` of the daemon; its file system is exported once for each image id."""
    if not _REFERENCE.fullmatch(name):
        raise _missing(name)
    async with _connected() as docker:
        image = await _inspect(docker, name)
        key = f"docker-{image['Id'].removeprefix('sha256:')}"

        async def fill(making: Path) -> Record:
            await _export(docker, image["Id"], making / "export.tar")
            record = _record(name, image)
            size_bytes = await in_thread(lambda stop: _unpack(making, record, stop))
            return msgspec.structs.replace(record, size_bytes=size_bytes)

        return await make(key, fill)


@asynccontextmanager
async def _connected() -> "AsyncGenerator[Docker]":
    from aiodocker import Docker, DockerError  # noqa: PLC0415 - 0.2 s that only this image's users should pay

    try:
        # DOCKER_HOST goes before a context, as for the docker command; left to itself the library has it the other way round.
        docker = Docker(url=os.environ.get("DOCKER_HOST") or None)
    except (AssertionError, ValueError, ImportError, OSError, DockerError) as error:
        raise _unreachable(error) from None
    try:
        yield docker
    except DockerError as error:
        if error.status == _NO_CONNECTION:
            raise _unreachable(error) from None
        raise SubstrateError(f"the Docker daemon said: {error.message}") from None
    finally:
        await docker.close()


def _unreachable(error: Exception) -> SubstrateError:
    reason = " ".join(str(error).split()) or "there is no daemon at the usual places"
    return SubstrateError(
        f"no Docker daemon answers, so only these images are there: {_OTHERS}; start it or set DOCKER_HOST ({reason})"
    )


def _missing(name: str) -> SpecError:
    return SpecError(f"there is no image {name!r}: use {_OTHERS}, or one the Docker daemon holds, after `docker pull {name}`")


async def _inspect(docker: "Docker", name: str) -> Mapping[str, Any]:
    from aiodocker import DockerError  # noqa: PLC0415 - as above

    try:
        return await docker.images.inspect(name)
    except DockerError as error:
        if error.status in (400, 404):
            raise _missing(name) from None
        raise


async def _export(docker: "Docker", image_id: str, tar: Path) -> None:
    """Write the image's file system to `tar` by way of a container that is made for it and never started."""
    name = f"excise-export-{uuid.uuid4().hex}"
    config = {"Image": image_id, "Cmd": ["true"], "NetworkDisabled": True, "Labels": {"excise": "export"}}
    try:
        # To its end: a container whose answer we did not wait for would come into being after we had removed it.
        container = await to_end(docker.containers.create(config, name=name))
        with tar.open("wb") as file:
            # aiodocker has no export, and its get_archive holds the whole tar in memory.
            request = docker._query(f"containers/{container.id}/export")  # pyright: ignore[reportPrivateUsage]
            async with request as response, response:
                async for chunk in response.content.iter_chunked(1 << 20):
                    await asyncio.to_thread(file.write, chunk)
    finally:
        await to_end(_delete(docker, name))


async def _delete(docker: "Docker", name: str) -> None:
    from aiodocker import DockerError  # noqa: PLC0415 - as above

    with suppress(DockerError):  # it was never made; or the daemon is gone, which the export has said already
        container = docker.containers.container(name)  # pyright: ignore[reportUnknownMemberType] - its **kwargs have no type
        await container.delete(force=True, v=True)


def _unpack(making: Path, record: Record, stop: Stop) -> int:
    (making / "root").mkdir()
    named = f"image {record.name}"
    size_bytes = unpack(making / "export.tar", making / "root", stop, named=named, workdir=record.workdir)
    (making / "export.tar").unlink()
    return size_bytes


def _record(name: str, image: Mapping[str, Any]) -> Record:
    config: Mapping[str, Any] = image.get("Config") or {}
    pairs = (text.partition("=") for text in config.get("Env") or ())
    return Record(
        name=name,
        digest=image["Id"],
        env={"PATH": PATH, **{variable: value for variable, _, value in pairs}},
        workdir=config.get("WorkingDir") or "/",
        user=config.get("User") or None,
    )
