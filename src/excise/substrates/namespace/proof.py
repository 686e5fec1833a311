"""Proof that a state is the one it was: digests of what lies under a sandbox, and of what it has not written yet."""

import os
from pathlib import Path

from excise.errors import SandboxLost
from excise.storage.saved.layers import digest_of
from excise.storage.trees.storekeeper import Storekeeper
from excise.substrates.namespace.layers import Layer
from excise.substrates.namespace.roots import Roots, open_directory


class Proof:
    """What a sandbox that begins with one snapshot must have."""

    def __init__(self) -> None:
        self.fresh: str | None = None
        """The upper's digest when nobody has written yet: it holds the directories that a root needs and an image may lack."""

    async def check(self, storekeeper: Storekeeper, roots: Roots, saved: tuple[Path, ...]) -> None:
        """Raise SandboxLost, with what differs, unless the root is as it was when the snapshot was taken.

        `saved`: the trees of saved layers below it, each beneath a name that is its digest.
        """
        for tree in saved:
            digest = digest_of(tree)
            _compare(f"saved layer {digest}", digest, await _digest(storekeeper, open_directory(tree)))
        for layer in roots.stack.layers:
            seen = await _digest(storekeeper, await roots.open_layer(layer))
            _compare(f"layer {layer.id}", layer.digest, seen)
            layer.digest = seen
        seen = await _digest(storekeeper, await roots.open_upper())
        _compare("what is written in the sandbox", self.fresh, seen)
        self.fresh = seen


async def record(storekeeper: Storekeeper, roots: Roots, layers: tuple[Layer, ...]) -> None:
    """Take the digests of layers that have none yet: they were sealed or copied just now."""
    for layer in layers:
        if layer.digest is None:
            layer.digest = await _digest(storekeeper, await roots.open_layer(layer))


async def _digest(storekeeper: Storekeeper, directory: int) -> str:
    try:
        return await storekeeper.digest(directory)
    finally:
        os.close(directory)


def _compare(what: str, known: str | None, seen: str) -> None:
    if known is not None and known != seen:
        raise SandboxLost(f"the reset is not proved: {what} is {seen}, and was {known}; close the sandbox and report this")
