"""python -m cluster up | down | build | runsc | kubeconfig"""

import os
import sys

from cluster import runsc
from cluster.binaries import programs
from cluster.down import down
from cluster.errors import ClusterError
from cluster.go import alone
from cluster.places import Places, places
from cluster.up import up

_BUILDS = (["build"], ["runsc"])
"""Need no root: what they make is a file in the cache."""


def main(words: list[str], here: Places) -> int:
    if words == ["kubeconfig"]:
        print(here.kubeconfig)
        return 0
    if words not in (["up"], ["down"], *_BUILDS):
        print(__doc__, file=sys.stderr)
        return 2
    if words not in _BUILDS and os.geteuid() != 0:
        print("make substrates: a cluster takes root: try again as root", file=sys.stderr)
        return 1
    try:
        if words == ["build"]:
            programs()
            return 0
        if words == ["runsc"]:
            print(runsc.program())
            return 0
        here.run.parent.mkdir(parents=True, exist_ok=True)
        with alone(here.run.parent):
            (up if words == ["up"] else down)(here)
    except ClusterError as error:
        print(f"make substrates: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], places()))
