"""`docker`: containers by the Engine API, actions by its own exec. What people pay today."""

from excise.substrates.docker.substrate import DockerSubstrate

__all__ = ["DockerSubstrate"]
