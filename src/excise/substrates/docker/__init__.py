"""`docker`: containers by the Engine API, actions by its own exec, which is what people pay today; `docker+guest`: by ours."""

from excise.substrates.docker.guest import DockerGuestSubstrate
from excise.substrates.docker.substrate import DockerSubstrate

__all__ = ["DockerGuestSubstrate", "DockerSubstrate"]
