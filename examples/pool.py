"""Rollouts on warm sandboxes: python examples/pool.py [ADDRESS]

The pool keeps sandboxes of the states that are asked for, and a claim gets the one that needs the least work. What is coming is
said beforehand, so that the first group finds its sandboxes ready, too.
"""

import asyncio
import sys

import excise
from excise import Pool, Sandbox, Shell, Spec, Step

tasks = [Spec(image="host", steps=(Step("task", (Shell(f"echo helo {name} > greeting.txt"),)),)) for name in ("world", "there")]


async def rollout(pool: Pool, task: Spec) -> float | None:
    try:
        async with Sandbox(pool, task) as box:
            await box.run("sed -i s/helo/hello/ greeting.txt")  # what your model does
            return float((await box.run(["grep", "-q", "^hello", "greeting.txt"])).ok)
    except excise.SandboxLost:
        return None  # the machinery failed: sample again, never score 0


# README begins
async def main(address: str) -> None:
    async with Pool(address, count=16, reuse="auto") as pool:  # or excise.connect("pool:docker?pool.count=16")
        await pool.expect(tasks, group=4)
        for task in tasks:
            print(await asyncio.gather(*(rollout(pool, task) for _ in range(4))))
        seen = pool.figures()
        print(f"{sum(seen.hits.values()) + seen.misses} claims, {seen.failed} failed")


# README ends

if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "namespace"))
