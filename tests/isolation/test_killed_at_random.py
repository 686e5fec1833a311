"""SIGKILL of a client, a launcher or a guest at 200 seeded random moments each: no process is left, and nothing is scored."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

POINTS = 200
PROGRAM = Path(__file__).with_name("killed_at_random.py")


@pytest.mark.parametrize(("victim", "seed"), [("client", 20260), ("launcher", 20261), ("guest", 20262)])
def test_killed_at_random_moments(victim: str, seed: int, runs_here: Callable[[str], None]) -> None:
    """Processes, and with them their mount namespaces, are gone within a second without gc; control groups after it."""
    runs_here("namespace")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), victim, str(POINTS), str(seed)], capture_output=True, text=True, check=False, timeout=110
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["late"] == []
    assert seen["wrong"] == [], "a killed machine was shown to a policy as a command's failure"
    assert seen["groups_left"] == []
    if victim != "client":
        assert seen["lost"] + seen["refused"] >= POINTS // 2, "the kills missed what they were aimed at"
        assert seen["lost"] >= POINTS // 10
        assert seen["finished"] >= POINTS // 40
