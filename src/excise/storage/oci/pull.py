"""Images brought here from registries, several at once, within a budget of disk."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec

from excise.errors import ExciseError
from excise.storage import collect, store
from excise.storage.layers.jobs import Progress
from excise.storage.layers.store import LayerStore
from excise.storage.layers.workers import Workers
from excise.storage.oci import remote, tags
from excise.storage.oci.assemble import Account, assemble, key
from excise.storage.oci.documents import ImagePlan
from excise.storage.oci.registry import STALL_S
from excise.storage.store import Image

_MANIFESTS_AT_ONCE = 8


class Pulled(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one name."""

    name: str
    image: Image | None = None
    account: Account | None = None
    error: ExciseError | None = None


class Watcher:
    """Who is told of a pull as it goes; this one says nothing."""

    def planned(self, name: str, total_bytes: int) -> None:
        """`name` is there, and its layers have so many bytes in all."""

    def progressed(self, name: str, said: Progress) -> None:
        """Bytes came, or there is a line to say."""

    def finished(self, pulled: Pulled) -> None:
        """It is here, or it is not."""


async def pull(
    names: Sequence[str],
    *,
    jobs: int = 4,
    keep_bytes: int | None = None,
    watcher: Watcher | None = None,
    stall_s: float = STALL_S,
) -> tuple[Pulled, ...]:
    """Bring all `names` here. One that fails does not end the others; what came stays, and need not come again.

    With `keep_bytes` the images used least recently, and in use by nobody, make room when the store is larger.
    """
    watch = watcher or Watcher()
    layers = LayerStore()
    asking = asyncio.Semaphore(_MANIFESTS_AT_ONCE)
    async with Workers(jobs) as workers:

        async def one(name: str) -> Pulled:
            try:
                async with asking:
                    plan = await asyncio.to_thread(remote.plan, name, stall_s)
                watch.planned(name, sum(layer.size_bytes for layer in plan.layers))
                with store.pins().pin((key(plan.digest),)):
                    image, account = await assemble(plan, layers, workers, lambda said: watch.progressed(name, said))
                    pulled = Pulled(name=name, image=_tagged(plan, image), account=account)
                if keep_bytes is not None:
                    await collect.shrink(layers, workers, keep_bytes, spare=(image.key,))
            except ExciseError as error:
                pulled = Pulled(name=name, error=error)
            watch.finished(pulled)
            return pulled

        return tuple(await _all([one(name) for name in dict.fromkeys(names)]))


async def _all(pulls: Sequence[Coroutine[Any, Any, Pulled]]) -> list[Pulled]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one) for one in pulls]
    return [task.result() for task in tasks]


def _tagged(plan: ImagePlan, image: Image) -> Image:
    tags.write(tags.Tag(plan.name, image.key))
    return msgspec.structs.replace(image, name=plan.name)
