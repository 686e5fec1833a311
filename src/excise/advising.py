"""From where results lie to advice: what was measured on this host, and what its substrates say of their isolation."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from excise.economics.measured import Measured, newest, read
from excise.meter.provenance import declared, provenance
from excise.meter.records import Declared
from excise.registry import make, names

RESULTS = Path("results")
"""Where `excise measure` writes."""
_ASK_S = 20.0
NOT_BY_DEFAULT = ("fake", "command")


def measured_here(results: Sequence[str | Path] = ()) -> Measured:
    """`results`, or the newest of this host. Where runs do not say how far a substrate isolates, it is asked now."""
    host = provenance(Path.cwd(), {}).host
    found = read([Path(one) for one in results], host) if results else newest(RESULTS, host)
    absent = found.undeclared()
    if not absent:
        return found
    with ThreadPoolExecutor(1) as apart:  # the caller may have a loop of its own
        said = apart.submit(asyncio.run, _asked(absent)).result()
    return replace(found, declared={**said, **found.declared})


def known() -> list[str]:
    """Addresses that results could be of."""
    return [name for name in names() if name not in NOT_BY_DEFAULT]


async def _asked(addresses: Sequence[str]) -> dict[str, Declared]:
    answers = await asyncio.gather(*map(_probe, addresses))
    return {address: one for address, one in zip(addresses, answers, strict=True) if one is not None}


async def _probe(address: str) -> Declared | None:
    """What it declares now; None where it cannot be asked, and then it is offered to nobody."""
    try:
        async with asyncio.timeout(_ASK_S):
            substrate = make(address)
            try:
                return declared(await substrate.probe())
            finally:
                await substrate.close()
    except Exception:  # noqa: BLE001 - whatever is wrong with it: there is no answer
        return None
