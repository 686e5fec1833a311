"""Names to workloads. Others register a NAME by the entry point `excise.workloads`: a callable whose keywords are options."""

import inspect
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import get_type_hints

import msgspec

from excise.address import parse
from excise.errors import SpecError
from excise.workloads.workload import Workload

_OURS = {
    "t0": "excise.workloads.t0:T0",
    "t1": "excise.workloads.t1:T1",
    "t2": "excise.workloads.t2:T2",
    "t2-net": "excise.workloads.t2_net:T2Net",
}
_GROUP = "excise.workloads"


def names() -> tuple[str, ...]:
    """Every registered NAME, ours first."""
    return (*_OURS, *sorted(e.name for e in entry_points(group=_GROUP) if e.name not in _OURS))


def make(text: str) -> Workload:
    """The workload that `text` names: NAME or NAME?key=value, as addresses are written."""
    address = parse(text)
    factory = _factory(address.name)
    known = inspect.signature(factory).parameters
    hints = get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
    unknown = sorted(set(address.options) - set(known))
    if unknown:
        raise SpecError(f"{address.name} has no option {unknown[0]!r}; its options: {', '.join(known) or 'none'}")
    try:
        options = {key: msgspec.convert(value, hints[key], strict=False) for key, value in address.options.items()}
    except msgspec.ValidationError as error:
        raise SpecError(f"{text}: {error}") from None
    return factory(**options)


def _factory(name: str) -> Callable[..., Workload]:
    if name in _OURS:
        module, _, attribute = _OURS[name].partition(":")
        return getattr(import_module(module), attribute)
    for entry in entry_points(group=_GROUP, name=name):
        return entry.load()
    raise SpecError(f"no workload is called {name!r}; there are: {', '.join(names())}")
