"""What a pool should hold, as pure functions of what it sees: the same view, the same answer."""
