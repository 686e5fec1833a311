"""A spec's steps as layers over its image: each built in a sandbox of its own, saved, and shared by who asks for the same."""

import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from excise.handles import finish
from excise.spec import Spec, Step
from excise.storage.image import Image
from excise.storage.saved.layers import SavedLayers
from excise.storage.saved.steps import StepLayers
from excise.storage.trees.storekeeper import Storekeeper
from excise.substrates.namespace.handle import NamespaceHandle
from excise.substrates.namespace.states import Start

Make = Callable[[Start], Awaitable[NamespaceHandle]]


class Builder:
    """For one open substrate."""

    def __init__(self, storekeeper: Storekeeper) -> None:
        self._storekeeper = storekeeper
        self._layers: StepLayers | None = None

    async def start(self, spec: Spec, image: Image, make: Make, *, terms: dict[str, str]) -> Start:
        """Where a sandbox of `spec` begins: over its steps, or with them still to be run where they cannot be shared."""
        if not spec.all_steps():
            return Start(spec, image)
        if self._layers is None:
            self._layers = StepLayers(self._storekeeper)
        found = await self._layers.layers_for(spec, image, lambda step, below: _upper(spec, image, make, step, below), terms)
        return Start(spec, msgspec.structs.replace(image, over=found.paths), built=not found.steps)

    async def collect(self) -> tuple[str, ...]:
        """Remove saved layers whose lease ended and nobody uses, and what a killed builder left; which layers went."""
        return await SavedLayers(self._storekeeper).collect()

    async def close(self) -> None:
        """Give up what is being built. When no sandbox is left: they stand on what was built."""
        if self._layers is not None:
            await self._layers.close()

    def abandon(self) -> None:
        """The same from outside of the event loop it was used in, which is over."""
        if self._layers is not None:
            self._layers.abandon()


@asynccontextmanager
async def _upper(spec: Spec, image: Image, make: Make, step: Step, below: tuple[Path, ...]) -> AsyncGenerator[int]:
    """What the step wrote. Its processes, its /tmp and its network are gone by then."""
    alone = msgspec.structs.replace(spec.with_steps((step,)), boot=(), ready=())
    handle = await make(Start(alone, msgspec.structs.replace(image, over=below), is_step=True))
    try:
        await handle.ready()
        upper = await handle.open_upper()
    finally:
        await finish(handle.close())
    try:
        yield upper
    finally:
        os.close(upper)
