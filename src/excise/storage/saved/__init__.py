"""What was done in sandboxes, on the disk: layers, the steps of specs, snapshots."""
