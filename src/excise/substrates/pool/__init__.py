"""`pool:ADDRESS`: warm sandboxes of another substrate, at every depth of preparation, and the closest for each claim."""
