"""The descriptors of an action that is being started: some go to its runner, some stay with us, none is lost."""

import os
from types import TracebackType
from typing import Self

from excise.errors import SandboxLost


class Ends:
    """Owns what is opened in its block. At the end all is closed but what was kept; a shortage is the host's."""

    def __init__(self) -> None:
        self._owned: set[int] = set()
        self.handed: list[int] = []
        """For the runner, in its order; one may be there twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for descriptor in self._owned:
            os.close(descriptor)
        if isinstance(error, OSError):
            raise SandboxLost(f"this process could not open what an action needs: {error.strerror}") from None

    def own(self, descriptor: int) -> int:
        self._owned.add(descriptor)
        return descriptor

    def pipe(self) -> tuple[int, int]:
        reading, writing = os.pipe()
        return self.own(reading), self.own(writing)

    def hand_over(self, *descriptors: int) -> None:
        self.handed += descriptors

    def keep(self, *descriptors: int) -> None:
        self._owned.difference_update(descriptors)
