"""A living sandbox's control groups, held to other limits than it was made with."""

import asyncio
import errno
import os
from pathlib import Path

from excise.errors import SandboxLost, SpecError
from excise.spec import Limits
from excise.substrates.namespace.cgroups import CONTROLLERS, Groups, values

_MEMORY_IN_USE = {1: "memory.usage_in_bytes", 2: "memory.current"}


class Limiting:
    """The limits of one sandbox, as they are now."""

    def __init__(self, groups: Groups, places: dict[str, Path], limits: Limits) -> None:
        """`places`: for each controller that the sandbox has a group of, where that is."""
        self._groups = groups
        self._places = places
        self._limits = limits

    def require(self, limits: Limits) -> None:
        """Refuse what there is no group for: moving all processes into a new one costs more than another sandbox."""
        lacking = sorted(CONTROLLERS[controller] for controller in self._changed(limits) if controller not in self._places)
        if lacking:
            said = ", ".join(lacking)
            raise SpecError(f"this sandbox has no control group for {said}: make it of a spec whose needs name 'adopts'")

    def _changed(self, limits: Limits) -> list[str]:
        return [name for name, field in CONTROLLERS.items() if getattr(limits, field) != getattr(self._limits, field)]

    async def change(self, limits: Limits) -> None:
        """Hold it to `limits`, of which only what differs is written; None lifts a limit."""
        for controller in self._changed(limits):
            before, after = (getattr(held, CONTROLLERS[controller]) for held in (self._limits, limits))
            version, place = self._groups.version[controller], self._places[controller]
            written = values(controller, after, version, swap=self._groups.swap)
            if after is None or (before is not None and after > before):
                _write(place, written[::-1])  # v1: memory may never be more than memory and swap
            elif controller == "memory" and _in_use(place, version) > after:
                await asyncio.to_thread(_write, place, written)  # the kernel gives back what it can, which takes its time
            else:
                _write(place, written)
        self._limits = limits


def _in_use(place: Path, version: int) -> int:
    try:
        descriptor = os.open(f"{place}/{_MEMORY_IN_USE[version]}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return int(os.read(descriptor, 64))
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _gone(error) from None


def _write(place: Path, written: tuple[tuple[str, str], ...]) -> None:
    for file, value in written:
        try:
            descriptor = os.open(f"{place}/{file}", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(descriptor, value.encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno == errno.EBUSY:
                raise SandboxLost(
                    f"this sandbox holds more memory than the {value} bytes it was to have; make another"
                ) from None
            raise _gone(error) from None


def _gone(error: OSError) -> SandboxLost:
    return SandboxLost(f"the sandbox's control group cannot be changed ({error.strerror}); make another sandbox")
