"""Whether somebody else was busy just before a trial. What happens during a trial is the substrate's own doing."""

from excise.meter.records import Quiet

PRESSURE = 0.1
"""The share of the quiet window in which some task waited for a CPU, above which it was not quiet."""


def noisy(quiet: Quiet) -> bool:
    """Time stolen by other machines of this host's host, or tasks that waited for a CPU while none of them was ours."""
    waited = quiet.pressure_ns is not None and quiet.pressure_ns > PRESSURE * quiet.window_ns
    return waited or quiet.steal_s > 0
