"""Images that others made: registries, archives and the daemon, brought here as layers."""
