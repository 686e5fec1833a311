"""Plans that come with the package, as TOML: what is measured, on what, how often."""

import tomllib
from importlib.resources import files
from pathlib import Path

import msgspec

from excise.errors import SpecError
from excise.meter.latency_records import LatencyPlan


def load(name: str) -> LatencyPlan:
    """The plan called `name`, or the one in the TOML file at that path."""
    own = files(__name__) / f"{name}.toml"
    try:
        text = Path(name).read_text() if "/" in name or name.endswith(".toml") else own.read_text()
    except OSError:
        raise SpecError(f"there is no plan {name!r}; the package has: {', '.join(sorted(names()))}") from None
    try:
        return msgspec.convert(tomllib.loads(text), LatencyPlan)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise SpecError(f"plan {name!r} cannot be read: {error}") from None


def names() -> list[str]:
    return [entry.name.removesuffix(".toml") for entry in files(__name__).iterdir() if entry.name.endswith(".toml")]
