"""Who a sandbox is, so that a used one is not taken for a fresh one."""

import hashlib
import os
import re
from pathlib import Path

import msgspec

from excise.action import Action, Observation, Shell

_NAMESPACES = ("pid", "mnt", "net")
_MARK = ".excise-used"
_SCRIPT = (
    f'echo "mark $(cat {_MARK} 2>/dev/null)"; printf %s "$life" >{_MARK}; '
    'echo "boot $(cat /proc/sys/kernel/random/boot_id)"; '
    'echo "began $(sed "s/.*) //" /proc/1/stat | cut -d" " -f20)"; '
    "readlink " + " ".join(f"/proc/self/ns/{name}" for name in _NAMESPACES)
)


class Host(msgspec.Struct, frozen=True):
    """What a sandbox that isolates nothing shares with us."""

    boot: str
    namespaces: frozenset[str]


def this_host() -> Host:
    """Boot and namespaces of this very process."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return Host(boot, frozenset(os.readlink(f"/proc/self/ns/{name}") for name in _NAMESPACES))  # noqa: PTH115 - no path


def question(life: str) -> Action:
    """Asks a sandbox who it is and whose it was, and leaves the mark of this `life` in its working directory."""
    return Shell(_SCRIPT, env={"life": life}, timeout_s=60.0)


class Answer(msgspec.Struct, frozen=True):
    """What a sandbox said of itself."""

    identity: str = ""
    """A hash; empty where nothing tells it from the host."""
    mark: str = ""
    """The life that left its mark here before."""


def understood(seen: Observation, host: Host) -> Answer:
    """Read the answer; an image without the programs that tell has no identity.

    The kernel gives a closed namespace's number to the next one, so numbers alone tell nothing: when the first process of the
    process-id namespace began does. A machine of its own has a boot of its own.
    """
    text = seen.stdout.decode("utf-8", "replace")
    boot, began = _field("boot", text), _field("began", text)
    own = sorted(set(re.findall(r"^\w+:\[\d+\]$", text, re.MULTILINE)) - host.namespaces)
    told = began and (any(name.startswith("pid:") for name in own) or boot not in ("", host.boot))
    facts = " ".join((boot, began, *own))
    return Answer(hashlib.sha256(facts.encode()).hexdigest()[:16] if told else "", _field("mark", text))


def _field(name: str, text: str) -> str:
    found = re.search(rf"^{name} (.*)$", text, re.MULTILINE)
    return found[1].strip() if found else ""


class Lives:
    """Every sandbox that a run has used up."""

    def __init__(self, known: frozenset[str] = frozenset()) -> None:
        self._seen = set(known)

    def fault(self, answer: Answer) -> str | None:
        """Why this sandbox was not a fresh one, or None; from now on it is a used one."""
        if answer.mark:
            return "the sandbox is a used one: an earlier rollout's file is in it"
        if answer.identity in self._seen:
            return "the sandbox is a used one: an earlier rollout had the same boot, namespaces and first process"
        if answer.identity:
            self._seen.add(answer.identity)
        return None
