"""A substrate behind a URL: what `excise serve` serves, as if it were here."""

from excise.substrates.remote.substrate import RemoteSubstrate

__all__ = ["RemoteSubstrate"]
