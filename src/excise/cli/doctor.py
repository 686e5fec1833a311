"""`excise doctor`: what runs on this machine. Every "no" is a trial that was made, and says what would turn it into a "yes"."""

import asyncio
import sys
from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from excise import registry
from excise.cli import machine
from excise.cli.machine import Finding
from excise.cli.sentences import sentence
from excise.sandbox import Sandbox
from excise.spec import Spec
from excise.substrate import Capabilities

TRIAL_S = 8.0
"""How long one substrate may take to show that it works."""
_MACHINES = ("vm", "vm+guest")
MACHINE_S = 60.0
"""The same, where a machine boots, by an emulated processor perhaps, and beside every other trial."""

app = App(
    name="doctor",
    help_epilogue="""\
Examples:
  excise doctor
  excise doctor --json""",
)


class Diagnosis(msgspec.Struct, frozen=True):
    """What `--json` prints."""

    substrates: tuple[Finding, ...]
    machine: tuple[Finding, ...]


@app.default
def doctor(*, json: Annotated[bool, Parameter(negative="", show_default=False)] = False) -> int:
    """Try every substrate and what they rest on, and say what works here.

    Parameters
    ----------
    json
        Print the findings as JSON.
    """
    found = asyncio.run(_diagnose())
    if json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n")
    else:
        _print("Substrates (yes: it made a sandbox, ran `true` in it and closed it)", found.substrates)
        _print("This machine", found.machine)
    return 0


async def _diagnose() -> Diagnosis:
    async with asyncio.TaskGroup() as trials:
        on_machine = trials.create_task(machine.findings())
        # `command` is nothing to try until a recipe is named; the recipes that are shipped have names of their own.
        names = [name for name in registry.names() if name != "command"]
        substrates = [trials.create_task(_substrate(name)) for name in names]
    return Diagnosis(tuple(task.result() for task in substrates), on_machine.result())


async def _substrate(address: str) -> Finding:
    """Probe it, and then believe only a command that ran."""
    trial_s = MACHINE_S if address in _MACHINES else TRIAL_S
    try:
        substrate = registry.make(address)
        try:
            async with asyncio.timeout(trial_s):
                capabilities = await substrate.probe()
                async with Sandbox(substrate, Spec(image="host"), ttl_s=300.0, wait_s=trial_s, timeout_s=trial_s) as box:
                    seen = await box.run(["true"])
        finally:
            await substrate.close()
    except TimeoutError:
        return Finding(name=address, works=False, detail=f"no answer in {trial_s:g} s")
    except Exception as error:  # noqa: BLE001 - whatever a substrate raises, a third party's too, is its finding
        return Finding(name=address, works=False, detail=sentence(error))
    if not seen.ok:
        return Finding(name=address, works=False, detail=f"`true` failed in it: {seen.text.strip()}")
    return Finding(name=address, works=True, detail=_abilities(capabilities))


def _abilities(capabilities: Capabilities) -> str:
    versions = ", ".join(v if v.startswith(name) else f"{name} {v}" for name, v in capabilities.versions.items())
    isolates = f"isolates {', '.join(sorted(capabilities.isolates))}" if capabilities.isolates else "isolates nothing"
    able = [n for n in capabilities.__struct_fields__ if getattr(capabilities, n) is True]
    network = f"network {', '.join(sorted(capabilities.network))}" if "none" in capabilities.network else "the host's network"
    limits = f"limits {', '.join(sorted(capabilities.limits))}" if capabilities.limits else ""
    return "; ".join(part for part in (versions, isolates, network, " ".join(able), limits) if part)


def _print(title: str, found: tuple[Finding, ...]) -> None:
    width = max(len(finding.name) for finding in found)
    lines = [title]
    for finding in found:
        lines.append(f"  {'yes' if finding.works else 'no ':3}  {finding.name:{width}}  {finding.detail}")
        if finding.remedy:
            lines.append(f"       {'':{width}}  to enable: {finding.remedy}")
    sys.stdout.write("\n".join(lines) + "\n\n")
