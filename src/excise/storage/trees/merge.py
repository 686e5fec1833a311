"""Several layers as overlayfs shows them: one directory of many, and what a name in it is."""

import contextlib
import os
import stat
from collections.abc import Generator, Sequence
from typing import NamedTuple

from excise.storage.trees import whole


class Hidden(NamedTuple):
    """A whiteout, and nothing over it."""


class Leaf(NamedTuple):
    """Anything but a directory, in the layer it comes from."""

    directory: int
    name: bytes
    status: os.stat_result

    def data(self, most_bytes: int) -> bytes | None:
        """A file's bytes or a link's target; None for what has neither, or has more than that."""
        if stat.S_ISLNK(self.status.st_mode):
            return os.fsencode(os.readlink(self.name, dir_fd=self.directory))
        if not stat.S_ISREG(self.status.st_mode) or self.status.st_size > most_bytes:
            return None
        file = whole.open_file(self.directory, self.name)
        with open(file, "rb") as source:  # noqa: PTH123 - it is a descriptor
            return source.read(most_bytes)


class Merged:
    """A directory as the layers make it together, the topmost first."""

    def __init__(self, layers: Sequence[int], *, opaque: bool = False, within: bool = False) -> None:
        self._layers = layers
        self._marks = [whole.mark(layer) for layer in layers]
        self.opaque = opaque
        """Whether it lets nothing of still lower layers show through."""
        self.cut = opaque or within
        """The same, or it is in one that does."""
        self.status = os.fstat(layers[0])

    @property
    def top(self) -> int:
        return self._layers[0]

    def names(self) -> list[bytes]:
        """What any of the layers has, hidden or not."""
        if len(self._layers) == 1:
            return whole.names(self._layers[0])
        return sorted({name for layer in self._layers for name in whole.names(layer)})

    @contextlib.contextmanager
    def look(self, name: bytes) -> Generator["Hidden | Leaf | Merged | None"]:
        """What `name` is; None if no layer has it. A directory is open for as long as it is looked at."""
        with contextlib.ExitStack() as stack:
            below: list[int] = []
            opaque = False
            for layer, marked in zip(self._layers, self._marks, strict=True):
                try:
                    status = whole.look(layer, name)
                except FileNotFoundError:
                    continue
                hides = whole.is_whiteout(layer, name, status, marked)
                if not below and not stat.S_ISDIR(status.st_mode):
                    yield Hidden() if hides else Leaf(layer, name, status)
                    return
                if not stat.S_ISDIR(status.st_mode):
                    opaque = True
                    break
                below.append(stack.enter_context(whole.opened(layer, name)))
                if whole.mark(below[-1]) == b"y":
                    opaque = True
                    break
            yield Merged(below, opaque=opaque, within=self.cut) if below else None


@contextlib.contextmanager
def merged(layers: Sequence[int]) -> Generator[Merged]:
    """The layers' roots, topmost first, together; at least one."""
    with contextlib.ExitStack() as stack:
        yield Merged([stack.enter_context(whole.opened(layer)) for layer in layers])
