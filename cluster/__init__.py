"""A real Kubernetes cluster of one node, and a Docker daemon, for whoever measures or tests here: `make substrates`.

`python -m cluster up` brings it up or mends it, `python -m cluster down` removes it; design/cluster.md says why it is so.
"""
