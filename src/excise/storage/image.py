"""Images by name: where the root file system of a sandbox comes from.

host            this machine's programs, nothing of its user's; no download
excise/base     a small Debian, built here once by `excise image build excise/base`; excise/machine: what virtual machines boot
./x.tar         a root file system's tar, or an image of `docker save` or in OCI's layout, which may be a directory
anything else   an image that was pulled from a registry, else one the Docker daemon holds
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from excise.errors import SpecError
from excise.storage import debian, store
from excise.storage.background import Stop, in_thread
from excise.storage.collect import Collected, drop_layers
from excise.storage.layers.store import LayerStore
from excise.storage.layers.workers import Workers
from excise.storage.oci import assemble, reference, tags
from excise.storage.oci.archive import is_archive
from excise.storage.oci.archived import archived
from excise.storage.pins import Pin
from excise.storage.store import Image
from excise.storage.unpack import unpack

__all__ = ["Image", "Kind", "build", "hold", "kind", "list_images", "pulled", "remove", "resolve"]

Kind = Literal["host", "built", "tar", "docker"]
_TAR_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_CHUNK_BYTES = 1 << 20


def kind(name: str) -> Kind:
    """Where the image called `name` comes from."""
    if name == "host":
        return "host"
    if name in debian.RECIPES:
        return "built"
    return "tar" if name.startswith(("/", "./", "../", "~/")) or name.endswith(_TAR_ENDINGS) else "docker"


async def resolve(name: str) -> Image:
    """The image called `name`, made ready in the cache if it was not. Keep the Image: asking again is cheap, not free."""
    match kind(name):
        case "host":
            from excise.storage.skeleton import host  # noqa: PLC0415 - each kind pays for its own imports

            return await host()
        case "built":
            return debian.built(name)
        case "tar":
            return await _from_tar(name)
        case "docker":
            image = pulled(name)
            if image is None:
                from excise.storage.oci.daemon import held  # noqa: PLC0415 - as above

                image = await held(name)
            return msgspec.structs.replace(image, name=name)


def pulled(name: str) -> Image | None:
    """What a registry had under this name when it was pulled; it counts as used now."""
    try:
        tag = tags.find(str(reference.parse(name)))
    except SpecError:
        return None  # a name of the daemon's, an image's id say
    image = None if tag is None else store.find(tag.key)
    if image is not None:
        store.touch(image.key)
    return image


async def hold(name: str) -> tuple[Image, Pin]:
    """The image called `name`, which is not collected before the pin is closed, or this process ends."""
    while True:
        image = await resolve(name)
        pin = store.hold(image.key)
        if image.root.exists():
            return image, pin
        pin.close()  # it was collected in between


async def build(name: str, progress: Callable[[str], None]) -> Image:
    """Make the image ready; `progress` gets a line now and then. Only those of Debian packages take long."""
    if kind(name) == "docker":
        raise SpecError(f"{name!r} is not an image Excise builds; there are: {', '.join(debian.RECIPES)}")
    return await (debian.build(progress, name) if kind(name) == "built" else resolve(name))


def list_images() -> tuple[Image, ...]:
    """What the cache holds."""
    return tuple(store.found().values())


async def remove(name: str) -> tuple[Image, ...]:
    """Take every cached image with this name or digest out of the cache, and say which they were."""
    wanted = str(_tar_path(name)) if kind(name) == "tar" else name
    chosen = {key: image for key, image in store.found().items() if wanted in (image.name, image.digest)}
    if (image := pulled(name)) is not None:
        tags.remove(str(reference.parse(name)))
        others = [tag.name for tag in tags.found() if tag.key == image.key]
        chosen = {} if others else {image.key: image}
        if others:  # it has another name, and stays under that
            return (msgspec.structs.replace(image, name=name),)
    if not chosen:
        held = ", ".join(sorted({image.name for image in store.found().values()})) or "nothing"
        raise SpecError(f"the cache holds no image {name!r}; it holds: {held}")
    for key in chosen:
        if not await store.remove(key):
            raise SpecError(f"image {name!r} is in use: close the sandboxes made from it, and try again")
        tags.remove(*(tag.name for tag in tags.found() if tag.key == key))
    if any(image.layers for image in chosen.values()):
        async with Workers(1) as workers:
            await drop_layers(LayerStore(), workers, Collected())
    return tuple(chosen.values())


def _tar_path(name: str) -> Path:
    return Path(name).expanduser().absolute()


async def _from_tar(name: str) -> Image:
    path = _tar_path(name)
    if path.is_dir() and is_archive(path):
        return await archived(path, str(path))
    if not path.is_file():
        raise SpecError(f"there is no file {path}: name a root file system's tar, as `docker export` writes it")
    try:
        seen = store.identity(path.resolve())
        digest = store.recall(seen)
        if digest is None:
            digest = await in_thread(lambda stop: _digest(path, stop))
            store.remember(seen, digest)
    except PermissionError:
        raise SpecError(f"{path} cannot be read: permission denied") from None
    if (image := await _of_archive(path, digest)) is not None:
        return image

    async def fill(making: Path) -> store.Record:
        return await in_thread(lambda stop: _unpack_copy(path, digest, making, stop))

    image = await store.make(f"tar-{digest.removeprefix('sha256:')}", fill)
    return msgspec.structs.replace(image, name=str(path))


async def _of_archive(path: Path, digest: str) -> Image | None:
    """The image that the tar at `path` holds, if it holds one and not a root file system."""
    if store.find(f"tar-{digest.removeprefix('sha256:')}") is not None:
        return None
    held = store.recall(f"image in {digest}")
    image = None if held is None else store.find(assemble.key(held))
    if image is None and await in_thread(lambda _: is_archive(path)):
        image = await archived(path, str(path))
        store.remember(f"image in {digest}", image.digest)
    return None if image is None else msgspec.structs.replace(image, name=str(path))


def _unpack_copy(path: Path, digest: str, making: Path, stop: Stop) -> store.Record:
    """Unpack a copy: the user may overwrite the original at any time, and `Image.tar` must stay what `root` is."""
    with path.open("rb") as source, (making / "root.tar").open("wb") as copy:
        if _copy(source, copy, stop) != digest:
            raise SpecError(f"{path} changed while it was read: try again when it is complete")
    (making / "root").mkdir()
    size_bytes = unpack(making / "root.tar", making / "root", stop, named=str(path))
    return store.Record(name=str(path), digest=digest, env={"PATH": store.PATH}, size_bytes=size_bytes)


def _digest(path: Path, stop: Stop) -> str:
    with path.open("rb") as source:
        return _copy(source, None, stop)


def _copy(source: BinaryIO, copy: BinaryIO | None, stop: Stop) -> str:
    """Read to the end, write what was read to `copy`, and return its digest."""
    digest = hashlib.sha256()
    while chunk := source.read(_CHUNK_BYTES):
        stop.check()
        digest.update(chunk)
        if copy is not None:
            copy.write(chunk)
    return f"sha256:{digest.hexdigest()}"
