"""Rollouts on another machine: python examples/serve.py [URL]

Start the other side with `excise serve pool:namespace`, or let this example serve itself. A URL is an address: nothing of the
rollout changes. A connection that breaks is made again; what ran meanwhile ran once.
"""

import asyncio
import subprocess
import sys

import excise
from excise import Sandbox
from excise.substrate import Substrate


# README begins
async def rollout(substrate: Substrate, number: int) -> float | None:
    try:
        async with Sandbox(substrate, ttl_s=600) as box:  # a client that dies frees it after its lease
            seen = await box.run(f"echo $(({number} * {number}))", session="main")
            return float(seen.text)
    except excise.SandboxLost:
        return None  # the machinery failed: sample again, never score 0


async def main(url: str) -> None:
    async with excise.connect(url) as substrate:  # "https://sandboxes.example:8700", with EXCISE_KEY
        print(await asyncio.gather(*(rollout(substrate, number) for number in range(8))))


# README ends


def served() -> None:
    """Both sides on this machine."""
    command = [sys.executable, "-c", "from excise.cli import main; main()", "serve", "namespace", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        try:
            asyncio.run(main(server.stdout.readline().strip()))
        finally:
            server.terminate()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1])) if len(sys.argv) > 1 else served()
