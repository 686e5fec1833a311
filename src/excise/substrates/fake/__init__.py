"""A pretend substrate in memory: every promise of the contract kept, or, if asked, exactly one broken."""

from excise.substrates.fake.substrate import FakeSubstrate

__all__ = ["FakeSubstrate"]
