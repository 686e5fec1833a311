"""Names to substrates, without importing any.

Ours are listed here; others register a NAME by the entry point `excise.substrates`, which names
a callable whose keyword parameters are the address's options: the substrate's class will do.
"""

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, get_type_hints

import msgspec

from excise.address import Address, parse
from excise.errors import SpecError, Unsupported
from excise.substrate import Substrate

_OURS: dict[str, str] = {
    "fake": "excise.substrates.fake:FakeSubstrate",
    "local": "excise.substrates.local:LocalSubstrate",
    "chroot": "excise.substrates.chroot:ChrootSubstrate",
    "namespace": "excise.substrates.namespace:NamespaceSubstrate",
    "command": "excise.substrates.command:CommandSubstrate",
    "bubblewrap": "excise.substrates.command:bubblewrap",
    "runc": "excise.substrates.command:runc",
    "docker": "excise.substrates.docker:DockerSubstrate",
}
_WITH_GUEST: dict[str, str] = {
    "chroot": "excise.substrates.chroot:ChrootGuestSubstrate",
    "docker": "excise.substrates.docker:DockerGuestSubstrate",
}
_GROUP = "excise.substrates"


def names() -> tuple[str, ...]:
    """Every registered NAME, ours first; one that our guest goes into stands there twice, without it and with it."""
    ours = [path for name in _OURS for path in (name, *((f"{name}+guest",) if name in _WITH_GUEST else ()))]
    return (*ours, *sorted(e.name for e in entry_points(group=_GROUP) if e.name not in _OURS))


def make(text: str) -> Substrate:
    """The substrate that the address `text` names. Nothing runs yet: `probe` or `create` is the first contact."""
    address = parse(text)
    if address.url:
        raise Unsupported(f"{text} is a remote host, which Excise does not speak to yet; name a substrate of this machine")
    if address.wrappers:
        raise Unsupported(f"{address.wrappers[0]}: is not built yet; leave it out and use {address.name} itself")
    factory = _factory(address.name)
    if address.guest:
        factory = _with_guest(address.name)
    return factory(**_converted(factory, address))


def _with_guest(name: str) -> Callable[..., Substrate]:
    """The path by our own guest into a substrate that has one of its own as well."""
    if name == "namespace":
        raise Unsupported("namespace has the guest in every sandbox: leave +guest out")
    if name not in _WITH_GUEST:
        raise Unsupported(f"{name} has no +guest; use {name}, which takes its own path")
    return _loaded(_WITH_GUEST[name])


def _factory(name: str) -> Callable[..., Substrate]:
    if name in _OURS:
        return _loaded(_OURS[name])
    for entry in entry_points(group=_GROUP, name=name):
        try:
            return entry.load()
        except (ImportError, AttributeError) as error:
            package = entry.dist.name if entry.dist is not None else "its package"
            raise SpecError(
                f"the substrate {name!r} cannot be loaded from {entry.value}: {error}; install {package} again, or remove it"
            ) from error
    raise SpecError(f"no substrate is called {name!r}; there are: {', '.join(names())}")


def _loaded(named: str) -> Callable[..., Substrate]:
    module, _, attribute = named.partition(":")
    return getattr(import_module(module), attribute)


def _converted(factory: Callable[..., Substrate], address: Address) -> Mapping[str, Any]:
    """The address's options, as the types the factory's parameters are annotated with; text where they are not."""
    parameters = inspect.signature(factory).parameters
    named = {name: p for name, p in parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    hints = get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
    values: dict[str, Any] = {}
    for key, text in address.options.items():
        if key not in named and not takes_any:
            known = ", ".join(sorted(named)) or "none"
            raise SpecError(f"{address.name} has no option {key!r}; its options: {known}")
        try:
            values[key] = msgspec.convert(text, hints.get(key, str), strict=False)
        except msgspec.ValidationError as error:
            raise SpecError(f"{address.name}?{key}={text}: {error}") from None
    for name, parameter in named.items():
        if parameter.default is parameter.empty and name not in values:
            raise SpecError(f"{address.name} needs the option {name}: {address.name}?{name}=...")
    return values
