"""Where the time of your own loop goes: python examples/record.py [ADDRESS]

Nothing in the loop changes. The model is whatever happens between the sandbox's verbs; here it thinks for 20 ms.
"""

import asyncio
import sys

import excise
from excise import Sandbox, Spec

THINK_S = 0.02


async def rollout(address: str) -> None:
    async with Sandbox(address, Spec(image="host")) as box:
        for number in range(10):
            await asyncio.sleep(THINK_S)
            await box.run(f"echo {number} >> log", timeout_s=60)


async def main(address: str) -> None:
    with excise.record() as trace:
        await rollout(address)
    shares = trace.shares()
    print(shares)  # model 71 %, work 17 %, tax 12 %
    print(f"{shares.sandboxes} sandbox, {shares.total_s:.3f} s, of which the infrastructure took {shares.tax_s:.3f} s")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "local"))
