"""`vm`: a virtual machine a sandbox, with an init system and sshd, as a cloud's is; `vm+guest`: the same, by our guest."""

from excise.substrates.vm.guest import VmGuestSubstrate
from excise.substrates.vm.substrate import VmSubstrate

__all__ = ["VmGuestSubstrate", "VmSubstrate"]
