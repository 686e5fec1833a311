"""A substrate behind a socket: `excise serve`."""
