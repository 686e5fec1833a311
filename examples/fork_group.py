"""A group of rollouts from one state, as RL samples them: python examples/fork_group.py [ADDRESS]

The state is reached once: the image, the steps of the spec (built once and saved, where the substrate can), and what an agent
did so far. Each rollout of the group has it for itself; between epochs the first sandbox goes back to it.
"""

import asyncio
import sys

import excise
from excise import Sandbox, Shell, Spec, Step

task = Spec(image="host", steps=(Step("task", (Shell("echo helo world > greeting.txt"),)),))


async def attempt(box: Sandbox, number: int) -> bool:
    """One rollout: it stands where your model does, and only every second one finds the mistake."""
    await box.run(f"sed -i s/{'helo/hello' if number % 2 else 'world/there'}/ greeting.txt")
    return (await box.run(["grep", "-q", "^hello world$", "greeting.txt"])).ok


async def main(address: str) -> None:
    async with excise.connect(address) as substrate, Sandbox(substrate, task) as box:
        await box.run("echo looked around > notes.txt")  # what the group has in common
        start = await box.snapshot()
        for _ in range(2):
            async with box.fork(8) as group:
                rewards = await asyncio.gather(*(attempt(each, number) for number, each in enumerate(group)))
            print([float(reward) for reward in rewards])
            await box.run("rm -r greeting.txt notes.txt")  # whatever happens in it,
            await box.reset(start)  # it is the state again
        print((await box.run("cat greeting.txt notes.txt")).text, end="")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "namespace"))
