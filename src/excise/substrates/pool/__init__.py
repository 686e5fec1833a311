"""`pool:ADDRESS`: warm sandboxes of another substrate, at every depth of preparation, and the closest for each claim."""

from excise.substrates.pool.figures import Figures
from excise.substrates.pool.substrate import Pool

__all__ = ["Figures", "Pool"]
