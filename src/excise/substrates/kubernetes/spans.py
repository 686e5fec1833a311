"""The control plane's share of a create, as the watch showed it, on our clock: accepted, scheduled, pulled, started."""

from collections.abc import Mapping
from typing import Any

from excise.clock import now_ns
from excise.substrates.kubernetes.events import is_started
from excise.substrates.kubernetes.watch import Followed
from excise.trace import note_span

SET_UP = "set-up"
"""The kind of what comes before a pull in `started`: the pod's network and cgroups."""


class Milestones:
    """When a pod that is being made first showed each state."""

    def __init__(self) -> None:
        self.begun_ns = now_ns()
        self.at_ns: dict[str, int] = {}

    def begin(self) -> None:
        """The request goes out now: what was done once for all pods is no part of it."""
        self.begun_ns = now_ns()

    def attach(self, followed: Followed) -> None:
        followed.on_pod, followed.on_event = self._pod, self._event

    def detach(self, followed: Followed) -> None:
        followed.on_pod = followed.on_event = None

    def reached(self, name: str, at_ns: int) -> None:
        self.at_ns.setdefault(name, at_ns)

    def _pod(self, pod: Mapping[str, Any], at_ns: int) -> None:
        if pod["spec"].get("nodeName"):
            self.reached("scheduled", at_ns)
        if is_started(pod):
            self.reached("started", at_ns)

    def _event(self, event: Mapping[str, Any], at_ns: int) -> None:
        """`Pulled` is also said of an image that was there, then without a `Pulling`."""
        if event.get("reason") == "Pulling":
            self.reached("pulling", at_ns)
        elif event.get("reason") == "Pulled" and "pulling" in self.at_ns:
            self.reached("pulled", at_ns)

    def note(self, sandbox: str) -> None:
        """As spans of the trace that is recorded here, if one is: each from the state before to its own, without a gap."""
        last_ns = self.begun_ns
        for name, kind, at_ns in self._states():
            note_span(name, sandbox, last_ns, at_ns, kind=kind)
            last_ns = at_ns

    def _states(self) -> list[tuple[str, str, int]]:
        found = self.at_ns
        made = [("accepted", "", found.get("accepted")), ("scheduled", "", found.get("scheduled"))]
        if "pulled" in found:
            made += [("started", SET_UP, found["pulling"]), ("pulled", "", found["pulled"])]
        made.append(("started", "", found.get("started")))
        # An event may be told after the state it led to: then it ends there.
        last_ns, states = self.begun_ns, list[tuple[str, str, int]]()
        for name, kind, at_ns in made:
            if at_ns is not None:
                last_ns = max(last_ns, min(at_ns, found.get("started", at_ns)))
                states.append((name, kind, last_ns))
        return states
