"""Looking into a sandbox that another process owns: the owner answers at a door named after it."""
