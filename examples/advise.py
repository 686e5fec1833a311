"""A trainer that changes substrates by phase, by what was measured on its host: python examples/advise.py [RESULTS ...]"""

import sys

import excise
from excise.advising import measured_here
from excise.economics.demand import Demand, Prices

PHASES = {
    # Short rollouts, many resets, nobody waits but a worker.
    "explore": Demand(actions=10, resets=4),
    # Long ones, while GPUs that cost sixty times a worker stand still.
    "train": Demand(actions=150, prices=Prices(waiting=60.0)),
    # What the policy writes now is not trusted with our kernel.
    "audit": Demand(actions=50, kernel="own", isolates=frozenset({"files", "processes", "network"})),
}


def main(results: list[str]) -> None:
    measured = measured_here(results)  # read once, asked in every phase
    for phase, demand in PHASES.items():
        try:
            advice = excise.advise(demand, results=measured)
        except excise.SpecError as error:
            print(f"{phase}: {error}")
            continue
        tied = [offer.name for offer in advice.offers if offer.tied]
        print(f"{phase}: excise.connect({advice.best.connect!r}), {advice.best.state}; not told apart: {tied}")


if __name__ == "__main__":
    main(sys.argv[1:])
