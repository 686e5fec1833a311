"""Calls and byte streams between a client and a server, over connections that may break: what both ends have in common."""
