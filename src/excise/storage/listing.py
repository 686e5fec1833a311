"""What the cache holds, to be shown."""

import msgspec

from excise.storage import store
from excise.storage.layers.store import LayerStore
from excise.storage.oci import tags


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """An image and what it costs."""

    names: tuple[str, ...]
    digest: str
    size_bytes: int
    shared_bytes: int
    """Of its layers that other images have too."""
    used_s: float
    """When it was used last, in seconds since 1970."""


def listed() -> tuple[Listed, ...]:
    """Every image, the one used last first."""
    images = store.found()
    names: dict[str, list[str]] = {}
    for tag in tags.found():
        names.setdefault(tag.key, []).append(tag.name)
    sizes = {layer.digest: layer.size_bytes for layer in LayerStore().held()}
    having: dict[str, int] = {}
    for image in images.values():
        for digest in set(image.layers):
            having[digest] = having.get(digest, 0) + 1
    found = (
        Listed(
            names=tuple(names.get(key, [image.name])),
            digest=image.digest,
            size_bytes=image.size_bytes,
            shared_bytes=sum(sizes.get(digest, 0) for digest in set(image.layers) if having[digest] > 1),
            used_s=store.last_used_s(key),
        )
        for key, image in images.items()
    )
    return tuple(sorted(found, key=lambda one: one.used_s, reverse=True))
