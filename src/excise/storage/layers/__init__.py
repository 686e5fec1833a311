"""An image's layers: unpacked from tars that may be hostile, content-addressed, verified, and shown as one tree."""
