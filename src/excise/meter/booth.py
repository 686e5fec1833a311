"""What a plan of claims is about here: the tasks, the image, how to connect; and what a pool is asked beyond the seam."""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from excise.meter.latency import Floor
from excise.meter.pool_records import PoolCell
from excise.spec import Spec, Stage
from excise.substrate import Substrate
from excise.workloads.mixed import at_depth
from excise.workloads.workload import Workload


@runtime_checkable
class Settles(Protocol):
    """A substrate that does things by itself, and can be waited for."""

    async def settled(self) -> None:
        """Return when nothing is being made, reset or closed in the background, and nothing is about to be."""
        ...


@runtime_checkable
class Fills(Protocol):
    """A substrate that makes sandboxes before anybody asks for them."""

    async def fill(self, spec: Spec, count: int = 1, *, stage: Stage = Stage.DEPS) -> None:
        """Make so many idle sandboxes of `spec`, up to its steps of that depth."""
        ...


@runtime_checkable
class Figured(Protocol):
    """A substrate that counts what it does."""

    def figures(self) -> object: ...


class Task(Workload, Protocol):
    """One start state of many, and a short rollout in it."""

    @property
    def number(self) -> int: ...


class Population(Protocol):
    """The tasks that are asked for, the one most often asked for first."""

    @property
    def name(self) -> str: ...
    @property
    def tasks(self) -> Sequence[Task]: ...
    @property
    def with_sibling(self) -> Sequence[int]:
        """The numbers of those that have a sibling: another commit of the repository, the same lock file."""
        ...

    def sibling(self, number: int) -> Task: ...


class Booth(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan's names stand for here."""

    connect: Callable[[str], Substrate]
    mixed: Population
    image: str
    floor: Floor | None = None

    def spec(self, cell: PoolCell, task: Task) -> Spec:
        """Steps are run in every sandbox, unless the cell is about what they leave being kept."""
        spec = task.spec(self.image)
        if cell.kept or cell.state == "deps-warm":
            return spec
        if cell.state == "repo-warm":
            kept = at_depth(spec, "repo").steps
            return msgspec.structs.replace(spec, steps=(*kept, *spec.unshared().steps[len(kept) :]))
        return spec.unshared()
