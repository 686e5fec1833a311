"""`microvm`: a small virtual machine a sandbox, with a kernel of its own and our guest as its first process."""

from excise.substrates.microvm.substrate import MicrovmSubstrate

__all__ = ["MicrovmSubstrate"]
