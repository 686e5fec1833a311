"""What is no longer needed goes: images no name means, layers no image has, what killed processes left."""

import msgspec

from excise.errors import SubstrateError
from excise.storage import store
from excise.storage.layers.store import LayerStore
from excise.storage.layers.workers import Workers
from excise.storage.oci import tags
from excise.storage.saved.layers import SavedLayers
from excise.storage.trees.storekeeper import Storekeeper


class Collected(msgspec.Struct):
    """What went."""

    images: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    size_bytes: int = 0
    leftovers: int = 0


async def collect(layers: LayerStore, workers: Workers) -> Collected:
    """Take out what nothing refers to and nobody holds."""

    def is_named(key: str) -> bool:
        return any(tag.key == key for tag in tags.found())

    pulled = [key for key, image in store.found().items() if image.layers]
    gone = [key for key in pulled if await store.remove(key, unless=is_named)]
    made = Collected(images=tuple(gone), leftovers=await store.clean() + await layers.clean(workers))
    await drop_layers(layers, workers, made)
    return made


async def drop_layers(layers: LayerStore, workers: Workers, into: Collected) -> None:
    """Take out the layers that no image has."""
    sizes: dict[str, int] = {}

    def unneeded() -> list[str]:
        needed = {digest for image in store.found().values() for digest in image.layers}
        sizes.update((layer.digest, layer.size_bytes) for layer in layers.held() if layer.digest not in needed)
        return list(sizes)

    taken = await layers.remove(unneeded, workers)
    into.layers = (*into.layers, *taken)
    into.size_bytes += sum(sizes[digest] for digest in taken)


async def shrink(layers: LayerStore, workers: Workers, keep_bytes: int, spare: tuple[str, ...] = ()) -> Collected:
    """Take images out, the least recently used first, until all layers have at most `keep_bytes`; never one that is held."""
    made = Collected()
    pulled = [key for key, image in store.found().items() if image.layers and key not in spare]
    for key in sorted(pulled, key=store.last_used_s):
        if sum(layer.size_bytes for layer in layers.held()) <= keep_bytes:
            break
        if await store.remove(key):
            tags.remove(*(tag.name for tag in tags.found() if tag.key == key))
            made.images = (*made.images, key)
            await drop_layers(layers, workers, made)
    return made


async def tidy(keep_bytes: int | None) -> Collected:
    """Collect in the user's own store, and shrink it if it is to be smaller."""
    layers = LayerStore()
    async with Workers(1) as workers:
        made = await collect(layers, workers)
        if keep_bytes is not None:
            smaller = await shrink(layers, workers, keep_bytes)
            made.images, made.layers = (*made.images, *smaller.images), (*made.layers, *smaller.layers)
            made.size_bytes += smaller.size_bytes
    return made


async def corrupted() -> tuple[int, tuple[str, ...]]:
    """How many layers the user's own store has, and what is wrong with which."""
    layers = LayerStore()
    found: list[str] = []
    held = layers.held()
    async with Workers(1) as workers:
        for layer in held:
            try:
                await layers.verify(layer.digest, workers)
            except SubstrateError as error:
                found.append(str(error))
    async with Storekeeper() as keeper:
        saved, wrong = await SavedLayers(keeper).corrupted()
    return len(held) + saved, (*found, *wrong)
