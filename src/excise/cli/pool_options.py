"""From the words of `excise pool` to arrivals."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from excise.errors import SpecError

if TYPE_CHECKING:
    from excise.loading.arrivals import Arrival
    from excise.loading.specs import Wanted

_UNITS_S = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_LOADS = "a load is poisson:RATE, burst:N, burst:N/EVERY or replay:FILE"


def seconds(text: str, option: str, *, least_s: float = 0.0) -> float:
    """`2s`, `500ms`, `1.5m`, `3`."""
    found = re.fullmatch(r"([0-9]*\.?[0-9]+(?:e[0-9]+)?)(ms|s|m|h|)", text.strip())
    value = float(found[1]) * _UNITS_S[found[2]] if found else math.nan
    if not least_s <= value < math.inf:
        above = "" if least_s == 0.0 else f" of at least {least_s:g} s"
        raise SpecError(f"{option} {text} is not a time{above}: write 60s, 500ms, 2m or a number of seconds")
    return value


def arrivals(load: str, wanted: "Sequence[Wanted]", *, for_s: float, hold_s: float, seed: int) -> "tuple[Arrival, ...]":
    """Every arrival that `load` stands for."""
    from excise.loading import arrivals as kinds  # noqa: PLC0415 - `excise pool --help` does not pay for it
    from excise.loading.replay import replay  # noqa: PLC0415

    kind, _, rest = load.partition(":")
    match kind:
        case "poisson":
            found = kinds.poisson(_number(rest, load), for_s, wanted, hold_s=hold_s, seed=seed)
        case "burst":
            count, slash, every = rest.partition("/")
            every_s = seconds(every, f"--load {load}: the time between bursts") if slash else None
            found = kinds.burst(_whole(count, load), every_s, for_s, wanted, hold_s=hold_s, seed=seed)
        case "replay":
            if not rest:
                raise SpecError("--load replay: names no file: write replay:FILE")
            found = tuple(one for one in replay(Path(rest), wanted, hold_s=hold_s) if one.at_s < for_s)
        case _:
            raise SpecError(f"--load {load} is no load: {_LOADS}")
    if not found:
        raise SpecError(f"--load {load} brings nobody within {for_s:g} s: make --for longer, or the rate higher")
    return found


def _number(text: str, load: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise SpecError(f"--load {load} is no load: {_LOADS}") from None


def _whole(text: str, load: str) -> int:
    value = _number(text, load)
    if not math.isfinite(value) or value != int(value):
        raise SpecError(f"--load {load}: a burst is a whole number, as burst:64")
    return int(value)


def specs(spec: Path | None, many: Path | None, mix: int, zipf: float, image: str) -> "tuple[Wanted, ...]":
    """Of a file, or the built-in mix."""
    from excise.loading import specs as kinds  # noqa: PLC0415 - see above

    if spec is not None and many is not None:
        raise SpecError("--spec and --specs say what to ask for: leave one of them out")
    if spec is not None:
        return kinds.read_one(spec)
    return kinds.mix(mix, zipf, image) if many is None else kinds.read_many(many)


def place(text: str) -> tuple[str, int]:
    """`9400`, or `HOST:9400`."""
    from excise.loading.exposition import LOOPBACK  # noqa: PLC0415 - see above

    host, colon, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65535 or (colon and not host):
        raise SpecError(f"--metrics {text} is no port: write 9400, or HOST:9400 to be reached from elsewhere")
    return host.strip("[]") or LOOPBACK, int(port)
