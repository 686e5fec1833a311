"""To come with its first module."""
