"""Run workloads on substrates in blocks and write down what happened. What it means is the business of `stats`."""
