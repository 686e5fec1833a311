"""`namespace`: sandboxes of Linux namespaces, made by our own launcher, with our guest inside."""

from excise.substrates.namespace.substrate import NamespaceSubstrate

__all__ = ["NamespaceSubstrate"]
