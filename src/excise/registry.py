"""Names to substrates, without importing any.

Ours are listed here; others register a NAME by the entry point `excise.substrates`, which names
a callable whose keyword parameters are the address's options: the substrate's class will do.
"""

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Literal, get_args, get_origin, get_type_hints

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
    "kubernetes": "excise.substrates.kubernetes:KubernetesSubstrate",
    "gvisor": "excise.substrates.gvisor:GvisorSubstrate",
    "vm": "excise.substrates.vm:VmSubstrate",
    "microvm": "excise.substrates.microvm:MicrovmSubstrate",
}
_WITH_GUEST: dict[str, str] = {
    "chroot": "excise.substrates.chroot:ChrootGuestSubstrate",
    "docker": "excise.substrates.docker:DockerGuestSubstrate",
    "kubernetes": "excise.substrates.kubernetes:KubernetesGuestSubstrate",
    "gvisor": "excise.substrates.gvisor:GvisorGuestSubstrate",
    "vm": "excise.substrates.vm:VmGuestSubstrate",
}
_WRAPPERS: dict[str, str] = {"pool": "excise.substrates.pool:Pool", "hosted": "excise.substrates.hosted:HostedSubstrate"}
_REMOTE = "excise.substrates.remote:RemoteSubstrate"
_GROUP = "excise.substrates"


def names() -> tuple[str, ...]:
    """Every registered NAME, ours first; one that our guest goes into stands there twice, without it and with it."""
    ours = [path for name in _OURS for path in (name, *((f"{name}+guest",) if name in _WITH_GUEST else ()))]
    return (*ours, *sorted(e.name for e in entry_points(group=_GROUP) if e.name not in _OURS))


def make(text: str) -> Substrate:
    """The substrate that the address `text` names. Nothing runs yet: `probe` or `create` is the first contact."""
    address = parse(text)
    if address.wrappers:
        return _wrapped(address)
    if address.url:
        if address.options:
            raise SpecError(f"{address.url} takes no options: what it serves has them, where it is served")
        return _loaded(_REMOTE)(address.url)
    factory = _factory(address.name)
    if address.guest:
        factory = _with_guest(address.name)
    return factory(**_converted(factory, address.name, address.options))


def _wrapped(address: Address) -> Substrate:
    """A substrate over the one that the rest of the address names; options that begin with its name are its own."""
    name, *inner = address.wrappers
    if name in inner:
        raise SpecError(f"{name}: over {name}: says the same twice; write {name}:{address.name}")
    prefix = f"{name}."
    own = {key.removeprefix(prefix): value for key, value in address.options.items() if key.startswith(prefix)}
    rest = {key: value for key, value in address.options.items() if not key.startswith(prefix)}
    source = make(str(msgspec.structs.replace(address, wrappers=tuple(inner), options=rest)))
    factory = _loaded(_WRAPPERS[name])
    return factory(source, **_converted(factory, name, own, given=("source",), prefix=prefix))


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


def _converted(
    factory: Callable[..., Substrate], name: str, options: Mapping[str, str], *, given: tuple[str, ...] = (), prefix: str = ""
) -> Mapping[str, Any]:
    """An address's options, as the types the factory's parameters are annotated with; text where they are not."""
    parameters = inspect.signature(factory).parameters
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = {key: p for key, p in parameters.items() if p.kind not in variable and key not in given}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    hints = get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
    values: dict[str, Any] = {}
    for key, text in options.items():
        if key not in named and not takes_any:
            known = ", ".join(sorted(prefix + each for each in named)) or "none"
            raise SpecError(f"{name} has no option {prefix + key!r}; its options: {known}")
        hint = hints.get(key, str)
        try:
            values[key] = msgspec.convert(text, hint, strict=False)
        except msgspec.ValidationError as error:
            words = f"it is one of {', '.join(get_args(hint))}" if get_origin(hint) is Literal else error
            raise SpecError(f"{name}?{prefix}{key}={text}: {words}") from None
    for key, parameter in named.items():
        if parameter.default is parameter.empty and key not in values:
            raise SpecError(f"{name} needs the option {key}: {name}?{key}=...")
    return values
