"""A measurement from Python: python examples/measure.py [ADDRESS ...]"""

import sys

import excise


def main(addresses: list[str]) -> None:
    run = excise.measure(*addresses, blocks=3)
    for row in run.rows:
        print(f"{row.address}: tax rate {row.tax_rate}, n = {row.n}")
    print(f"raw results: {run.path}")


if __name__ == "__main__":
    main(sys.argv[1:] or ["local"])
