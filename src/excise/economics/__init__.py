"""What rollouts cost on each substrate that was measured here, and which is the cheapest that isolates enough."""
