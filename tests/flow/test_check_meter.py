"""`excise check meter`, as a user runs it."""

import json
import subprocess
import sys
from pathlib import Path

EXCISE = str(Path(sys.executable).parent / "excise")


def test_the_instrument_checks_itself() -> None:
    done = subprocess.run([EXCISE, "check", "meter", "--json"], capture_output=True, check=False, timeout=100, text=True)
    lines = json.loads(done.stdout)
    simulated = [line for line in lines if line["case"].startswith("coverage: ")]
    assert {line["outcome"] for line in simulated} == {"kept", "not declared"}
    assert sum(line["outcome"] == "kept" for line in simulated) >= 10
    # The live checks are sure at 99.9 %: whatever they say, they say it with figures.
    live = {line["case"]: line["reason"] for line in lines if line["case"].startswith("live: ")}
    assert "99.9 % interval" in live["live: the same twice"]
    assert "ms an action" in live["live: a delay is found"]
    assert lines[-1]["case"] == "the harness's own time"
    assert done.returncode == int(any(line["outcome"] == "broken" for line in lines))
