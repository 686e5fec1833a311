"""The same rollouts, blocking, from threads: python examples/sync_rollout.py [ADDRESS]"""

import sys
from concurrent.futures import ThreadPoolExecutor

import excise
from excise import Shell, Spec, Step
from excise.sync import Sandbox

task = Spec(image="host", steps=(Step("task", (Shell("echo helo world > greeting.txt"),)),))
grade = 'test "$(cat greeting.txt)" = "hello world"'
commands = ("cat greeting.txt", "echo hello world > greeting.txt", "cat greeting.txt")


def rollout(address: str) -> float | None:
    try:
        with Sandbox(address, task, ttl_s=3600) as box:
            for command in commands:
                box.run(command, timeout_s=60)
            return float(box.run(["sh", "-c", grade], timeout_s=600).ok)
    except excise.SandboxLost:
        return None  # the machinery failed: sample again, never score 0


if __name__ == "__main__":
    address = sys.argv[1] if len(sys.argv) > 1 else "local"
    with ThreadPoolExecutor(max_workers=4) as threads:
        print(list(threads.map(rollout, [address] * 8)))
