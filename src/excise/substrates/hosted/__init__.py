"""`hosted:ADDRESS`: what it costs to have a substrate on another machine, measured on this one."""

from excise.substrates.hosted.substrate import HostedSubstrate

__all__ = ["HostedSubstrate"]
