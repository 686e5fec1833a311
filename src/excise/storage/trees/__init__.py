"""Trees of files as an overlay's layers: digest, copy, squash, difference; and the process that does it."""
