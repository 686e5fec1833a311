"""`gvisor`: runsc's own kernel around each sandbox, actions by `runsc exec`; `gvisor+guest`: by ours."""

from excise.substrates.gvisor.guest import GvisorGuestSubstrate
from excise.substrates.gvisor.substrate import GvisorSubstrate

__all__ = ["GvisorGuestSubstrate", "GvisorSubstrate"]
