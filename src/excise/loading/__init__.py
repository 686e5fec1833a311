"""Open-loop load on a substrate: when rollouts arrive, what they ask for, what came of it, and the same for Prometheus."""
