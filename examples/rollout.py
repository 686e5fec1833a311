"""Rollouts on any substrate: python examples/rollout.py [ADDRESS]

The policy is scripted: it stands where your model does. The task is a file with a mistake in it.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable

import excise
from excise import Sandbox, Shell, Spec, Step
from excise.substrate import Substrate

Policy = Callable[[str], Awaitable[str | None]]

task = Spec(image="host", steps=(Step("task", (Shell("echo helo world > greeting.txt"),)),))
grade = 'test "$(cat greeting.txt)" = "hello world"'


def scripted() -> Policy:
    commands = iter(("cat greeting.txt", "echo hello world > greeting.txt", "cat greeting.txt"))

    async def policy(_: str) -> str | None:
        return next(commands, None)

    return policy


# README begins
async def rollout(policy: Policy, substrate: Substrate) -> float | None:
    try:
        async with Sandbox(substrate, task, ttl_s=3600) as box:
            text = ""
            while (command := await policy(text)) is not None:
                text = (await box.run(command, timeout_s=60)).text
            return float((await box.run(["sh", "-c", grade], timeout_s=600)).ok)
    except excise.SandboxLost:
        return None  # the machinery failed: sample again, never score 0


async def main(address: str) -> None:
    async with excise.connect(address) as substrate:  # "local", "docker", "bubblewrap", ...
        rewards = await asyncio.gather(*(rollout(scripted(), substrate) for _ in range(8)))
    print(rewards)


# README ends

if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "local"))
