"""Names to workloads: ours, one's own files, and what others register.

A path (it has a "/" or ends in .toml, .jsonl or .json) is one's own: a description, a recorded trajectory, or one that
mini-swe-agent saved. Others register a NAME by the entry point `excise.workloads`: a callable whose keywords are options.
"""

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
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
_FILES = {
    ".toml": "excise.workloads.own:Own",
    ".jsonl": "excise.workloads.recorded:Recorded",
    ".json": "excise.workloads.recorded:Recorded",
}
_GROUP = "excise.workloads"


def names() -> tuple[str, ...]:
    """Every registered NAME, ours first."""
    return (*_OURS, *sorted(e.name for e in entry_points(group=_GROUP) if e.name not in _OURS))


def make(text: str) -> Workload:
    """The workload that `text` names: NAME or PATH, with ?key=value after it as addresses have it."""
    head, mark, query = text.partition("?")
    if "/" in head or head.endswith(tuple(_FILES)):
        return _made(text, head, _file(head), parse(f"file{mark}{query}").options, path=Path(head))
    address = parse(text)
    return _made(text, address.name, _factory(address.name), address.options)


def _made(text: str, name: str, factory: Callable[..., Workload], given: Mapping[str, str], **fixed: object) -> Workload:
    known = [key for key in inspect.signature(factory).parameters if key not in fixed]
    hints = get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise SpecError(f"{name} has no option {unknown[0]!r}; its options: {', '.join(known) or 'none'}")
    try:
        converted = {key: msgspec.convert(value, hints[key], strict=False) for key, value in given.items()}
    except msgspec.ValidationError as error:
        raise SpecError(f"{text}: {error}") from None
    return factory(**fixed, **converted)


def _file(path: str) -> Callable[..., Workload]:
    for ending, named in _FILES.items():
        if path.endswith(ending):
            return _loaded(named)
    raise SpecError(f"{path} is no workload: a file is a description (.toml), or a trajectory (.jsonl, .json)")


def _factory(name: str) -> Callable[..., Workload]:
    if name in _OURS:
        return _loaded(_OURS[name])
    for entry in entry_points(group=_GROUP, name=name):
        return entry.load()
    raise SpecError(f"no workload is called {name!r}; there are: {', '.join(names())}")


def _loaded(named: str) -> Callable[..., Workload]:
    module, _, attribute = named.partition(":")
    return getattr(import_module(module), attribute)
