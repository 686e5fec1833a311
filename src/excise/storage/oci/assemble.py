"""From an image's plan to the image: its layers brought in, each once, and shown as one tree."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec

from excise.storage import store
from excise.storage.layers.jobs import Progress, View
from excise.storage.layers.store import Layer, LayerStore
from excise.storage.layers.workers import Workers
from excise.storage.oci.documents import ImagePlan, LayerPlan
from excise.storage.store import PATH, Image, Record
from excise.storage.unpack import MOUNT_POINTS


class Account(msgspec.Struct):
    """What an image took, to be said."""

    layers: int = 0
    layers_there: int = 0
    """Already here, or brought by another image at the same time."""
    total_bytes: int = 0
    """Of all its layers as they come."""
    read_bytes: int = 0
    """Of those that came."""


def key(digest: str) -> str:
    """Where an image with this configuration is in the cache, whatever way it came."""
    return f"image-{digest.removeprefix('sha256:')}"


async def assemble(
    plan: ImagePlan, layers: LayerStore, workers: Workers, progress: Callable[[Progress], None] = lambda _: None
) -> tuple[Image, Account]:
    """The image of `plan`. Nothing of it is called there before it is whole."""
    account = Account(layers=len(plan.layers), total_bytes=sum(layer.size_bytes for layer in plan.layers))
    with layers.pin(tuple(layer.diff_id for layer in plan.layers)):
        if (image := store.find(key(plan.digest))) is not None:
            account.layers_there = account.layers
            return image, account
        brought = await _bring(plan, layers, workers, progress, account)

        async def fill(making: Path) -> Record:
            (making / "root").mkdir()
            places = tuple(str(layer.path.parent) for layer in brought)
            complete = (*MOUNT_POINTS, (plan.workdir, 0o755))
            await workers.run(View(layers=places, root=str(making / "root"), complete=complete))
            return Record(
                name=plan.name,
                digest=plan.digest,
                env={"PATH": PATH, **plan.env},
                workdir=plan.workdir,
                user=plan.user,
                size_bytes=sum(layer.size_bytes for layer in {layer.digest: layer for layer in brought}.values()),
                layers=tuple(layer.diff_id for layer in plan.layers),
            )

        return await store.make(key(plan.digest), fill), account


async def _bring(
    plan: ImagePlan, layers: LayerStore, workers: Workers, progress: Callable[[Progress], None], account: Account
) -> list[Layer]:
    """All layers, several at once; the first that fails ends the others."""

    async def one(layer: LayerPlan) -> Layer:
        came = False

        def note(said: Progress) -> None:
            nonlocal came
            came = True
            account.read_bytes += said.read_bytes
            progress(said)

        named = f"layer {layer.diff_id[:19]} of {plan.name}"
        brought = await layers.add(layer.source, layer.diff_id, workers, digest=layer.digest, named=named, progress=note)
        if not came:
            account.layers_there += 1
        return brought

    unique = {layer.diff_id: layer for layer in plan.layers}
    try:
        async with asyncio.TaskGroup() as group:
            tasks = {diff_id: group.create_task(one(layer)) for diff_id, layer in unique.items()}
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None
    return [tasks[layer.diff_id].result() for layer in plan.layers]
