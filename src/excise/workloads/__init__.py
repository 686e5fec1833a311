"""What a rollout does, as data: one module a tier, found by name."""
