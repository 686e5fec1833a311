"""An image the Docker daemon holds: what it saves is taken in as any archive is, layer by layer, with ENV, WORKDIR and USER."""

import asyncio
import errno
import os
import re
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from excise.errors import SpecError, SubstrateError
from excise.storage.home import cache_dir
from excise.storage.oci.archived import archived
from excise.storage.oci.assemble import key
from excise.storage.store import Image, find, touch

if TYPE_CHECKING:
    from aiodocker import Docker

_NO_CONNECTION = 900  # aiodocker's own status, beside HTTP's
_REFERENCE = re.compile(r"[a-zA-Z0-9]+(?:(?:[/:@]|[._]{1,2}|-+)[a-zA-Z0-9]+)*")
_OTHERS = "host, excise/base, a root file system's tar (./x.tar)"


async def held(name: str) -> Image:
    """The image `name` of the daemon; it is saved once for each image id."""
    if not _REFERENCE.fullmatch(name):
        raise _missing(name)
    async with _connected(name) as docker:
        image = await _inspect(docker, name)
        if (known := find(key(image["Id"]))) is not None:
            touch(known.key)
            return known
        with tempfile.TemporaryDirectory(prefix=".save-", dir=cache_dir()) as scratch:
            tar = Path(scratch) / "image.tar"
            await _save(docker, image["Id"], tar)
            return await archived(tar, name)


@asynccontextmanager
async def _connected(name: str = "NAME") -> "AsyncGenerator[Docker]":
    from aiodocker import Docker, DockerError  # noqa: PLC0415 - 0.2 s that only this image's users should pay

    try:
        # DOCKER_HOST goes before a context, as for the docker command; left to itself the library has it the other way round.
        docker = Docker(url=os.environ.get("DOCKER_HOST") or None)
    except (AssertionError, ValueError, ImportError, OSError, DockerError) as error:
        raise _unreachable(name, error) from None
    try:
        yield docker
    except DockerError as error:
        if error.status == _NO_CONNECTION:
            raise _unreachable(name, error) from None
        raise SubstrateError(f"the Docker daemon said: {error.message}") from None
    finally:
        await docker.close()


def _unreachable(name: str, error: Exception) -> SubstrateError:
    reason = " ".join(str(error).split()) or "there is no daemon at the usual places"
    return SubstrateError(
        f"no Docker daemon answers, so only these images are there: {_OTHERS}, and what `excise image pull {name}` brings; "
        f"start it or set DOCKER_HOST ({reason})"
    )


def _missing(name: str) -> SpecError:
    return SpecError(f"there is no image {name!r} here: run `excise image pull {name}`, or use {_OTHERS}, or one Docker holds")


async def _inspect(docker: "Docker", name: str) -> Mapping[str, Any]:
    from aiodocker import DockerError  # noqa: PLC0415 - as above

    try:
        return await docker.images.inspect(name)
    except DockerError as error:
        if error.status in (400, 404):
            raise _missing(name) from None
        raise


async def _save(docker: "Docker", image_id: str, tar: Path) -> None:
    try:
        with tar.open("wb") as file:
            # aiodocker's own `export_image` is the same request, with a timeout over all of it.
            request = docker._query(f"images/{image_id}/get")  # pyright: ignore[reportPrivateUsage]
            async with request as response, response:
                async for chunk in response.content.iter_chunked(1 << 20):
                    await asyncio.to_thread(file.write, chunk)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise SubstrateError(
            f"the disk of {tar.parents[1]} is full: free some space there, or set EXCISE_HOME to a larger one"
        ) from None
