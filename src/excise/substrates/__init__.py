"""All that hands out sandboxes, one module each; `registry` finds them by name."""
