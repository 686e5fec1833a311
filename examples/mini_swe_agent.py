"""mini-swe-agent's DefaultAgent, its commands in a sandbox: python examples/mini_swe_agent.py [ADDRESS]

Needs `pip install mini-swe-agent`; for what is used of it here, `pip install --no-deps mini-swe-agent` and `excise[consumers]`
will do, without its hundreds of megabytes of model clients.
The model is a scripted one, so that this runs anywhere: put your own in its place.
"""

import os
import sys
from typing import Any

from excise import Spec
from excise.action import End
from excise.sync import Sandbox

os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")  # before the import, which else greets
from minisweagent.agents.default import DefaultAgent  # pyright: ignore[reportMissingImports]
from minisweagent.exceptions import Submitted  # pyright: ignore[reportMissingImports]
from minisweagent.models.test_models import (  # pyright: ignore[reportMissingImports]
    DeterministicModel,
    make_output,
)

FINISHED = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
TEMPLATES: dict[str, Any] = {"system_template": "You fix bugs with shell commands.", "instance_template": "{{task}}"}


class ExciseEnvironment:
    """mini-swe-agent's Environment. A lost sandbox is no return code: SandboxLost ends the agent's run, unscored."""

    def __init__(self, box: Sandbox, timeout_s: float = 60.0) -> None:
        self.config = {"timeout_s": timeout_s}
        self._box = box

    def execute(self, action: dict[str, Any], cwd: str = "") -> dict[str, Any]:
        seen = self._box.run(action["command"], cwd=cwd or None, merge=True, timeout_s=self.config["timeout_s"])
        output = seen.stdout.decode("utf-8", "replace")
        first, _, submission = output.lstrip().partition("\n")
        if first == FINISHED and seen.ok:
            extra = {"exit_status": "Submitted", "submission": submission}
            raise Submitted({"role": "exit", "content": submission, "extra": extra})
        code = seen.exit_code if seen.end is End.EXITED else 128 + (seen.signal or 9)
        return {"output": output, "returncode": code, "exception_info": "" if seen.end is End.EXITED else seen.end.value}

    def get_template_vars(self, **more: Any) -> dict[str, Any]:
        return {**self.config, **more}

    def serialize(self) -> dict[str, Any]:
        return {"info": {"config": {"environment": self.config, "environment_type": type(self).__qualname__}}}


def agent(box: Sandbox, *commands: str, timeout_s: float = 60.0) -> DefaultAgent:
    """An agent whose model says these commands, one after another."""
    outputs = [make_output(f"I run {command!r}.", [{"command": command}], cost=0.0) for command in commands]
    return DefaultAgent(DeterministicModel(outputs=outputs), ExciseEnvironment(box, timeout_s), **TEMPLATES)


if __name__ == "__main__":
    address = sys.argv[1] if len(sys.argv) > 1 else "local"
    with Sandbox(address, Spec(image="host")) as box:
        box.write("greeting.txt", "helo world\n")
        fixing = agent(box, "cat greeting.txt", "echo hello world > greeting.txt", f"echo {FINISHED}; cat greeting.txt")
        ended = fixing.run("The greeting has a typo. Fix it.")
        print(ended["exit_status"], ended["submission"].strip())
