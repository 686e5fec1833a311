"""Layers under a sandbox's root, counted: one goes when nobody has it any more."""

import asyncio
import contextvars
from collections.abc import Iterable

from excise.storage.pins import Pin
from excise.substrates.namespace.launcher import Launcher


class Layer:
    """What was written in a sandbox until it was sealed. It is never written again."""

    def __init__(self, launcher: Launcher, id: int) -> None:
        self.id = id
        self.size_bytes = 0
        self.digest: str | None = None
        """As it was sealed, if anybody asked."""
        self._launcher = launcher
        self._uses = 1

    def take(self) -> None:
        assert self._uses > 0
        self._uses += 1

    def release(self) -> None:
        """The last one's use is over: its memory is given back, unless a sandbox is still made of it."""
        self._uses -= 1
        if self._uses == 0 and not self._launcher.dead:
            # In no rollout's trace, whoever's release it was.
            self._dropping = asyncio.get_running_loop().create_task(self._launcher.drop(self.id), context=contextvars.Context())


class Hold:
    """Saved layers in use, counted: they may be collected when nobody uses them any more."""

    def __init__(self, pin: Pin) -> None:
        self._pin = pin
        self._uses = 1

    def take(self) -> "Hold":
        assert self._uses > 0
        self._uses += 1
        return self

    def release(self) -> None:
        self._uses -= 1
        if self._uses == 0:
            self._pin.close()


class Stack:
    """The layers of one root or one snapshot, the topmost first, held as long as that is there."""

    def __init__(self, layers: Iterable[Layer] = ()) -> None:
        self.layers = tuple(layers)
        for layer in self.layers:
            layer.take()

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(layer.id for layer in self.layers)

    def replace(self, lowest: tuple[Layer, ...], one: Layer) -> None:
        """If these are the lowest, have `one` in their place."""
        above = len(self.layers) - len(lowest)
        if lowest and above >= 0 and self.layers[above:] == lowest:
            one.take()
            self.layers = (*self.layers[:above], one)
            for layer in lowest:
                layer.release()

    def release(self) -> None:
        layers, self.layers = self.layers, ()
        for layer in layers:
            layer.release()
