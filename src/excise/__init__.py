"""Excise measures the rollout infrastructure tax of coding-agent reinforcement learning, and cuts it out."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from excise.action import Batch, Exec, Observation, Shell
    from excise.api import advise, connect, measure, record
    from excise.errors import (
        CapacityError,
        CreateError,
        ExciseError,
        ReadyTimeout,
        SandboxLost,
        SpecError,
        SubstrateError,
        Unsupported,
    )
    from excise.sandbox import Sandbox
    from excise.spec import Limits, Spec, Step
    from excise.substrates.pool import Pool

_HOME = {
    "excise.action": ("Batch", "Exec", "Observation", "Shell"),
    "excise.api": ("advise", "connect", "measure", "record"),
    "excise.errors": (
        "CapacityError",
        "CreateError",
        "ExciseError",
        "ReadyTimeout",
        "SandboxLost",
        "SpecError",
        "SubstrateError",
        "Unsupported",
    ),
    "excise.sandbox": ("Sandbox",),
    "excise.spec": ("Limits", "Spec", "Step"),
    "excise.substrates.pool": ("Pool",),
}

__all__ = [
    "Batch",
    "CapacityError",
    "CreateError",
    "ExciseError",
    "Exec",
    "Limits",
    "Observation",
    "Pool",
    "ReadyTimeout",
    "Sandbox",
    "SandboxLost",
    "Shell",
    "Spec",
    "SpecError",
    "Step",
    "SubstrateError",
    "Unsupported",
    "advise",
    "connect",
    "measure",
    "record",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: `import excise` alone loads nothing."""
    for module, names in _HOME.items():
        if name in names:
            value = getattr(import_module(module), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'excise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
