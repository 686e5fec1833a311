"""A sample of an operation: what is kept of it, and how it is made and judged."""

import uuid

import msgspec

from excise.action import Observation
from excise.spec import Spec
from excise.substrate import Handle, Snapshot, Substrate

_LEASE_S = 600.0
_DEADLINE_S = 120.0
SESSION = "main"
PROGRAM = "/usr/bin/echo"
"""By its path, as the floor's: to search for a program is not what is compared."""


class OtherWork(Exception):  # noqa: N818 - it is told as a reason, not raised to a user
    """An answer without its nonce."""


class Samples(msgspec.Struct):
    """What a cell has seen in one block."""

    took_ns: list[int] = []
    floor_ns: list[int] = []
    close_ns: list[int] = []


async def create(substrate: Substrate, start: Spec | Snapshot) -> Handle:
    return await substrate.create(start, deadline_s=_DEADLINE_S, lease_s=_LEASE_S, labels={}, request_id=uuid.uuid4().hex)


def check(answer: Observation, nonce: str) -> None:
    if not answer.ok or answer.stdout != f"{nonce}\n".encode():
        raise OtherWork(f"a nonce was asked for and {answer.text[:200]!r} came back")
