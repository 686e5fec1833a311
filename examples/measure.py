"""A measurement from Python: python examples/measure.py RESULTS_DIRECTORY [ADDRESS ...]"""

import sys

import excise


def main(out: str, addresses: list[str]) -> None:
    run = excise.measure(*addresses, blocks=3, budget_s=None, out=out)
    for row in run.rows:
        print(f"{row.address}: tax rate {row.tax_rate}, n = {row.n}")
    print(f"raw results: {run.path}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:] or ["local"])
