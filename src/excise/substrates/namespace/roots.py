"""The roots of one sandbox, one after another: what each is made of, and what was sealed on the way."""

import asyncio
import errno
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from excise.errors import SandboxLost
from excise.storage.image import Image
from excise.storage.trees.storekeeper import Storekeeper
from excise.substrates.namespace import request
from excise.substrates.namespace.launcher import Launcher
from excise.substrates.namespace.layers import Layer, Stack
from excise.substrates.namespace.place import Place, close_all
from excise.substrates.namespace.request import Answer, Create


class Roots:
    """What the launcher is told of a sandbox's root, now and later."""

    def __init__(self, launcher: Launcher, place: Place, asked: Create, stack: Stack, image: Image) -> None:
        """`stack` is ours from now on: it is what the topmost lowers of `asked` are."""
        self._launcher = launcher
        self._place = place
        self._asked = asked
        self._image = lowers(image)
        self.stack = stack
        self.directories = asked.directories
        """Made in every root that does not have them."""
        self._offered: asyncio.Future[Answer] | None = None
        """The root of the present life. The guest may be heard before the launcher has heard that it has it."""

    async def seal(self) -> bool:
        """Have all that was written in layers, under a fresh upper. Whether it is: else something lives in the sandbox."""
        await self._settled()
        layer = Layer(self._launcher, self._launcher.number())
        answer = await asyncio.shield(await self._offer(self.stack, self._image, layer.id))
        if (refused := answer.number(request.TAG_ERRNO)) in (errno.EBUSY, errno.ENODATA):
            return refused == errno.ENODATA  # nothing was written: it is so already
        _check(answer)
        layer.size_bytes = answer.number(request.TAG_SIZE_BYTES)
        self._over((layer, *self.stack.layers))
        layer.release()  # the stack has it
        return True

    async def copy(self, storekeeper: Storekeeper) -> Layer:
        """What is written now, as a layer of its own; its use is the caller's. Whoever writes must stand still meanwhile."""
        return await self._filled(storekeeper, (await self.open_upper(),))

    async def squash(self, storekeeper: Storekeeper, layers: tuple[Layer, ...]) -> Layer:
        """Layers in a row as one that can take their place; its use is the caller's."""
        return await self._filled(storekeeper, await self.open_layers(layers))

    async def open_layers(self, layers: Sequence[Layer]) -> list[int]:
        opened: list[int] = []
        try:
            for layer in layers:
                opened.append(await self.open_layer(layer))
        except BaseException:
            close_all(opened)
            raise
        return opened

    async def _filled(self, storekeeper: Storekeeper, sources: Sequence[int]) -> Layer:
        layer = Layer(self._launcher, self._launcher.number())
        try:
            target = await self._launcher.make(layer.id)
            try:
                layer.size_bytes = await storekeeper.squash(sources, target)
            finally:
                os.close(target)
        except BaseException:
            layer.release()
            raise
        finally:
            close_all(sources)
        return layer

    async def change(self, layers: tuple[Layer, ...], image: Image) -> asyncio.Future[Answer]:
        """Offer the guest's next life a root over these layers and `image`; the answer says what became of it."""
        stack, below = Stack(layers), lowers(image)
        try:
            answer = await self._offer(stack, below, None)
        except BaseException:
            stack.release()
            raise
        self.stack.release()
        self.stack, self._image = stack, below
        self._offered = answer
        return answer

    async def _offer(self, stack: Stack, below: tuple[str, ...], seal: int | None) -> asyncio.Future[Answer]:
        asked = msgspec.structs.replace(self._asked, lowers=(*stack.ids, *below))
        return await self._launcher.root(self._place, asked, seal)

    async def _settled(self) -> None:
        """Until then the launcher would hand out, or seal, what the life before has written."""
        if self._offered is not None:
            await asyncio.shield(self._offered)

    def _over(self, layers: tuple[Layer, ...]) -> None:
        old, self.stack = self.stack, Stack(layers)
        old.release()

    async def open_layer(self, layer: Layer) -> int:
        """Its directory: a descriptor, the caller's."""
        return await self._launcher.open(layer.id)

    async def open_upper(self) -> int:
        """The directory with what was written since the last root: a descriptor, the caller's."""
        await self._settled()
        return await self._launcher.open(self._place.id)


def lowers(image: Image) -> tuple[str, ...]:
    """What is below a sandbox's own layers, the topmost first."""
    return (*map(str, image.over), str(image.root))


def open_directory(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def refusal(answer: asyncio.Future[Answer]) -> str | None:
    """Why a sandbox could not have a root, in one sentence; None if it has it."""
    if answer.cancelled():
        return None
    if (error := answer.exception()) is not None:
        return str(error)
    said = answer.result()
    if not said.number(request.TAG_ERRNO):
        return None
    return f"the sandbox could not be given another root: {said.text(request.TAG_STEP)}: {said.text(request.TAG_MESSAGE)}"


def _check(answer: Answer) -> None:
    if answer.number(request.TAG_ERRNO):
        said = f"{answer.text(request.TAG_STEP)}: {answer.text(request.TAG_MESSAGE)}"
        raise SandboxLost(f"the sandbox could not be given another root: {said}")
