"""Every live sandbox on this machine that is ours to look at: the doors that are open here, and what Docker lists."""

import asyncio
import os
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from excise.errors import ExciseError, SandboxLost, SpecError
from excise.looking import records
from excise.looking.door import PREFIX
from excise.looking.names import chosen, matching, short
from excise.looking.records import About
from excise.looking.visit import PATIENCE_S, Visit, line
from excise.registry import make
from excise.substrate import Handle

_DOOR = re.compile(rf"@({re.escape(PREFIX)}(\d+)/(\d+)/(\S+))")
OUTLIVING = "docker"
"""The substrate whose sandboxes are there without an owner."""


class Door(NamedTuple):
    """A name in the kernel's list."""

    name: bytes
    uid: int
    pid: int
    id: str


class Found(NamedTuple):
    """What is there, and what could not be asked, in sentences."""

    sandboxes: tuple[About, ...]
    silent: tuple[str, ...]


def doors(listed: str | None = None) -> tuple[Door, ...]:
    """Ours; for root, everybody's. `listed` is what the kernel lists in /proc/net/unix."""
    listed = Path("/proc/net/unix").read_text(errors="surrogateescape") if listed is None else listed
    found: dict[bytes, Door] = {}
    for text in listed.splitlines():
        named = _DOOR.fullmatch(text.rpartition(" ")[2])
        if named is not None and os.geteuid() in (0, int(named[2])):
            name = b"\0" + named[1].encode(errors="surrogateescape")
            found[name] = Door(name, int(named[2]), int(named[3]), named[4])
    return tuple(found.values())


async def everything() -> Found:
    """All of them, with what they use; the oldest first."""
    open_doors = doors()
    answers = await asyncio.gather(*map(_about, open_doors), return_exceptions=True)
    found: list[About] = []
    silent: list[str] = []
    for door, answer in zip(open_doors, answers, strict=True):
        if isinstance(answer, About):
            found.append(answer)
        elif isinstance(answer, TimeoutError):
            silent.append(
                f"{short(door.id)}: its owner (pid {door.pid}) does not answer: it is stopped, or its event loop is busy"
            )
        elif not isinstance(answer, SandboxLost | SpecError):  # those ended meanwhile, or are not who they say
            raise answer
    known = {about.id for about in found}
    found += (about for about in await _left_alone() if about.id not in known)
    return Found(tuple(sorted(found, key=lambda about: -(about.age_s or 0.0))), tuple(silent))


async def _about(door: Door) -> About:
    async with asyncio.timeout(PATIENCE_S), line(door.name, door.uid) as owner:
        await owner.send(records.Describe(usage=True))
        return await owner.expect(About)


async def _left_alone() -> Sequence[About]:
    """Containers, whether their owner lives or not; none where no daemon answers."""
    substrate = make(OUTLIVING)
    try:
        listed = await substrate.list({})
    except ExciseError:
        return ()
    finally:
        await substrate.close()
    return [
        About(id=one.id, address=OUTLIVING, age_s=one.age_s, lease_left_s=one.lease_left_s, labels=one.labels) for one in listed
    ]


@asynccontextmanager
async def opened(given: str) -> AsyncGenerator[Handle]:
    """The sandbox that `given` names, by its owner's door, or else by its substrate."""
    door = _named(given, doors())
    if door is not None:
        yield await visited(door)
        return
    about = chosen(given, await _left_alone())
    substrate = make(OUTLIVING)
    try:
        await substrate.probe()
        yield await substrate.attach(about.id)
    finally:
        await substrate.close()


def _named(given: str, open_doors: Sequence[Door]) -> Door | None:
    """The door that `given` names; None if there is none: Docker, which takes longer to answer, may know."""
    candidates = [About(id=door.id, address="") for door in open_doors]
    if not matching(given, candidates):
        return None
    wanted = chosen(given, candidates).id
    return next(door for door in open_doors if door.id == wanted)


async def visited(door: Door) -> Visit:
    """Once its owner has said that it is there."""
    try:
        async with asyncio.timeout(PATIENCE_S), line(door.name, door.uid) as owner:
            await owner.send(records.Describe())
            return Visit(await owner.expect(About), door.name, door.uid)
    except TimeoutError:
        raise SandboxLost(f"its owner (pid {door.pid}) does not answer: it is stopped, or its event loop is busy") from None
