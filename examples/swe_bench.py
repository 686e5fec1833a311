"""A SWE-bench-like evaluation from 32 threads: python examples/swe_bench.py [ADDRESS]

Each instance: a repository with a failing test, a patch, and hidden tests that grade it in a sandbox that nobody has worked in.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import excise
from excise import Batch, Exec, Spec
from excise.action import Write
from excise.substrate import Substrate
from excise.sync import Sandbox, connect

THREADS = 32
TEST = ("python3", "-m", "unittest", "-q")
WRONG, RIGHT = "return sum(numbers) / {n}\n", "return sum(numbers) / len(numbers)\n"


class Instance:
    """The mean of some numbers, wrong in every repository in another way."""

    def __init__(self, n: int) -> None:
        self.code = f"def mean(numbers):\n    {WRONG.format(n=n)}"
        self.fixed = f"def mean(numbers):\n    {RIGHT}"
        self.test = _test(n + 1)
        self.hidden = _test(n + 2)


def _test(count: int) -> str:
    lines = ("import unittest", "from code_ import mean", "class Test(unittest.TestCase):", "    def test_mean(self):")
    return "\n".join((*lines, f"        self.assertEqual(mean([1] * {count}), 1)", ""))


def prepared(box: Sandbox, code: str, test: str) -> None:
    """The repository, in one round trip."""
    box.run(Batch((Write("code_.py", code.encode()), Write("test_code.py", test.encode()), Exec(("git", "init", "-q")))))
    assert box.run("git add . && git -c user.name=a -c user.email=a@example.org commit -qm start").ok


def solved(substrate: Substrate, instance: Instance) -> bytes:
    """The rollout: see the test fail, change the code, see it pass; what it changed."""
    with Sandbox(substrate, Spec(image="host")) as box:
        prepared(box, instance.code, instance.test)
        assert not box.run(list(TEST), timeout_s=60).ok
        box.run("cat code_.py", session="main")
        box.write("code_.py", instance.fixed)
        assert box.run(list(TEST), timeout_s=60).ok
        return box.run(["git", "diff", "--", "code_.py"]).stdout


def graded(substrate: Substrate, instance: Instance, patch: bytes) -> float:
    """The hidden tests, by Exec in a fresh sandbox: nothing the rollout left running or planted can have a say."""
    with Sandbox(substrate, Spec(image="host")) as box:
        prepared(box, instance.code, instance.hidden)
        if patch and not box.run(["git", "apply", "-"], stdin=patch).ok:
            return 0.0
        return float(box.run(list(TEST), timeout_s=60).ok)


def evaluate(substrate: Substrate, n: int) -> float | None:
    instance = Instance(n)
    try:
        patch = solved(substrate, instance) if n % 4 else b""  # every fourth rollout gives up: the grader must see that
        return graded(substrate, instance, patch)
    except excise.SandboxLost:
        return None  # the machinery failed: sample again, never score 0


if __name__ == "__main__":
    address = sys.argv[1] if len(sys.argv) > 1 else "local"
    with connect(address) as substrate, ThreadPoolExecutor(THREADS) as threads:
        print(list(threads.map(lambda n: evaluate(substrate, n), range(THREADS))))
