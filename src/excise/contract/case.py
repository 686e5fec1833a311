"""What a case of the contract is, and how one is written."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NoReturn, cast

import msgspec

from excise.action import Observation
from excise.contract.bench import Bench
from excise.substrate import Capabilities

SHOWN = 80
"""How much of a value a reason shows."""
Body = Callable[[Bench], Coroutine[Any, Any, None]]


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One promise, and the code that sees it kept or broken."""

    name: str
    promise: str
    why: str
    """What users of such interfaces are bitten by."""
    needs: tuple[str, ...] = ()
    """Abilities without which there is nothing to judge: `stream`, a member of a set, as `limits.pids`; `snapshot.files`."""
    alone: bool = False
    """It looks at what all cases share, as this process's descriptors: none may run beside it."""
    run: Body


def case(*, promise: str, why: str, needs: tuple[str, ...] = (), alone: bool = False) -> Callable[[Body], Case]:
    """Make a case of an async function; its name, with dashes, names the promise."""

    def made(body: Body) -> Case:
        return Case(name=body.__name__.replace("_", "-"), promise=promise, why=why, needs=needs, alone=alone, run=body)

    return made


def declared(capabilities: Capabilities, need: str) -> bool:
    """Whether the ability `need`, or the member of a set of abilities `field.member`, is declared."""
    field, dot, member = need.partition(".")
    return member in (getattr(capabilities, field) or ()) if dot else capabilities.has(field)


def expect(condition: object, reason: str) -> None:
    """The promise is broken, for this reason, unless the condition holds. (An `assert` would vanish under -O.)"""
    if not condition:
        raise AssertionError(reason)


def broken(reason: str) -> NoReturn:
    """The promise is broken, for this reason."""
    raise AssertionError(reason)


def equal(got: object, wanted: object, what: str) -> None:
    """Like expect, for values worth showing; of long ones, what stands where they first differ."""
    if got == wanted:
        return
    reason = f"{what} is {_short(got)}, not {_short(wanted)}"
    if isinstance(got, bytes | str | list) and isinstance(wanted, bytes | str | list):
        at, one, other = _from_difference(cast("Sequence[object]", got), cast("Sequence[object]", wanted))
        reason = f"{what} is{f', from place {at} on,' if at else ''} {_short(one)}, not {_short(other)}"
    broken(reason)


def _from_difference(got: Sequence[object], wanted: Sequence[object]) -> tuple[int, Sequence[object], Sequence[object]]:
    """Where they first differ, and both from there on; from the beginning, if that is near."""
    at = next((n for n, (a, b) in enumerate(zip(got, wanted, strict=False)) if a != b), min(len(got), len(wanted)))
    at = at if at > SHOWN // 4 else 0
    return at, got[at : at + SHOWN], wanted[at : at + SHOWN]


def succeeded(seen: Observation, what: str) -> None:
    expect(seen.ok, f"{what} failed: {told(seen)}")


def told(seen: Observation) -> str:
    """An Observation in a few words, for a reason."""
    how = f"signal {seen.signal}" if seen.signal is not None else f"exit code {seen.exit_code}"
    return f"{seen.end.value}, {how}, stdout {_short(seen.stdout)}, stderr {_short(seen.stderr)}"


def _short(value: object) -> str:
    if isinstance(value, bytes | str) and len(value) > SHOWN:
        return f"{value[:SHOWN]!r} and so on, {len(value)} in all"
    text = repr(value)
    return text if len(text) <= 2 * SHOWN else f"{text[: 2 * SHOWN]} and so on"
