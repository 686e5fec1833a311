"""An image in a file, brought into the cache: its layers go where those of registries go, and are shared with them."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from excise.errors import SpecError
from excise.storage.background import Stop, in_thread
from excise.storage.home import cache_dir
from excise.storage.layers.store import LayerStore
from excise.storage.layers.workers import Workers
from excise.storage.oci import archive, tags
from excise.storage.oci.assemble import assemble, key
from excise.storage.oci.streams import FileSource, inflated
from excise.storage.store import Image, pins

_WORKERS = 2


async def archived(path: Path, name: str) -> Image:
    """The image that the archive at `path` holds; errors call it `name`."""
    if await in_thread(lambda _: archive.is_compressed(path)):
        # Its members can only be found in it once it is written out.
        with tempfile.TemporaryDirectory(prefix=".archive-", dir=cache_dir()) as scratch:
            plain = Path(scratch) / "image.tar"
            await in_thread(lambda stop: _write_out(path, plain, name, stop))
            return await _assembled(plain, name)
    return await _assembled(path, name)


async def _assembled(path: Path, name: str) -> Image:
    plan = await in_thread(lambda _: archive.plan(path, name))
    async with Workers(_WORKERS) as workers:
        with pins().pin((key(plan.digest),)):
            image, _ = await assemble(plan, LayerStore(), workers)
            tags.write(tags.Tag(name, image.key))
    return image


def _write_out(path: Path, plain: Path, name: str, stop: Stop) -> None:
    def chunks() -> Iterator[bytes]:
        for chunk in FileSource(str(path)).chunks():
            stop.check()
            yield chunk

    try:
        with plain.open("wb") as file:
            for chunk in inflated(chunks()):
                file.write(chunk)
    except (SpecError, ValueError, EOFError) as error:
        raise SpecError(f"{name} cannot be read: {error}") from None
