"""Layers above a bound become one, beside whatever goes on: a sandbox may be snapshot as often as one likes."""

import asyncio
import contextvars

from excise.errors import ExciseError
from excise.handles import finish
from excise.storage.trees.storekeeper import Storekeeper
from excise.substrates.namespace.layers import Layer, Stack
from excise.substrates.namespace.roots import Roots
from excise.substrates.namespace.snapshots import Snapshots

MOST_LAYERS = 32
"""More of them are squashed."""
NO_MORE_LAYERS = 96
"""A launcher takes 128 lowers: here a snapshot waits for the squash."""


class Depth:
    """How deep one sandbox's layers lie."""

    def __init__(self, roots: Roots, snapshots: Snapshots, storekeeper: Storekeeper) -> None:
        self._roots = roots
        self._snapshots = snapshots
        self._storekeeper = storekeeper
        self._squash: asyncio.Task[None] | None = None

    async def bound(self) -> None:
        """After a layer was added. Raises what kept the layers from being squashed when there is no room for another."""
        depth = len(self._roots.stack.layers)
        if depth <= MOST_LAYERS:
            return
        if self._squash is None or self._squash.done():
            # In no rollout's trace.
            loop = asyncio.get_running_loop()
            self._squash = loop.create_task(self._squashed(self._roots.stack.layers[1:]), context=contextvars.Context())
            self._squash.add_done_callback(_seen)
        if depth > NO_MORE_LAYERS:
            await asyncio.shield(self._squash)

    async def _squashed(self, layers: tuple[Layer, ...]) -> None:
        """Whoever lies on just these layers by then lies on one; others, a sandbox that was reset meanwhile, do not."""
        held = Stack(layers)
        try:
            one = await self._roots.squash(self._storekeeper, layers)
        finally:
            held.release()
        self._roots.stack.replace(layers, one)
        self._snapshots.replace(layers, one)
        one.release()

    async def close(self) -> None:
        if self._squash is not None:
            self._squash.cancel()
            await finish(asyncio.wait([self._squash]))


def _seen(squash: asyncio.Task[None]) -> None:
    """A squash that failed is tried again by the next snapshot, and told when there is no room without it."""
    if not squash.cancelled() and not isinstance(squash.exception(), ExciseError | None):
        squash.get_loop().call_exception_handler({"message": "layers were not squashed", "task": squash})
