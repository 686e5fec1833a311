"""`microvm`."""
