"""`command`: create, exec and close as command lines in a TOML file, so that any CLI is a row without Python."""

from excise.substrates.command.substrate import CommandSubstrate, bubblewrap, runc

__all__ = ["CommandSubstrate", "bubblewrap", "runc"]
