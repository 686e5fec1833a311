"""The table of isolation and economics as Markdown: generated, never written by hand."""

from collections.abc import Sequence

from excise.economics.measured import Measured
from excise.economics.table import Standing
from excise.economics.weighed import Weighed
from excise.report.numbers import interval, short
from excise.stats.estimate import Estimate

NOT = "not measured"
_HEADS = (
    "substrate",
    "kernel",
    "kept apart",
    "a neighbour can observe",
    "start ms",
    "action ms",
    "slowdown of work %",
    "reset ms",
    "idle MiB",
    "alive at once",
)
CLOUD = (
    ("a cloud's VM (`aws` CLI)", "docs/recipes/aws-ec2.toml"),
    ("a cloud's VM (`gcloud` CLI)", "docs/recipes/gcloud-compute.toml"),
)
"""Recipes that come with the documentation. They cost money and an account to run, so no row of theirs is measured."""


def markdown(found: Sequence[Standing], measured: Measured) -> str:
    """The table and its notes."""
    lines = [_line(_HEADS), _line([":--"] * 4 + ["--:"] * 6), *(_line(_cells(one)) for one in found)]
    lines += [_line([name, "own", "", "not run", *["not run"] * 6]) for name, _ in CLOUD]
    return "\n".join([*lines, "", *(f"- {note}" for note in _notes(found, measured)), ""])


def _cells(one: Standing) -> list[str]:
    declared = one.declared
    name = f"`{one.address}`" + ("~" if one.estimated else "") + (" (another run)" if one.elsewhere else "")
    isolation = (
        ["not recorded", "not recorded"] if declared is None else [_kernel(one), ", ".join(declared.isolates) or "nothing"]
    )
    seen = NOT if one.observed is None else ", ".join(name for name, yes in one.observed.seen.items() if yes) or "none of it"
    if not one.measured:
        return [name, *isolation, seen, *[NOT] * 4, *_weight(one.weighed)]
    reset = "none but a new one" if one.reset_s is None else f"{_ms(one.reset_s)} ({one.reset_by})"
    slow = NOT if one.slowdown is None else _beside(one.slowdown, 100.0)
    slow = "0, by definition" if one.reference else slow
    return [name, *isolation, seen, _ms(one.start_s), _ms(one.action_s), slow, reset, *_weight(one.weighed)]


def _kernel(one: Standing) -> str:
    """Whose it is; and what a machine's numbers hang on most, whether its processor is the host's or emulated."""
    assert one.declared is not None
    accel = one.versions.get("accel", "").partition(" ")[0]
    return one.declared.kernel + {"": "", "tcg": ", emulated (TCG)"}.get(accel, f" ({accel.upper()})")


def _weight(weighed: Weighed | None) -> list[str]:
    if weighed is None:
        return [NOT, NOT]
    each = weighed.each_bytes
    return ["not told from 0" if each is None else short(each / (1 << 20)), f"{weighed.most:,}"]


def _ms(estimate: Estimate | None) -> str:
    return NOT if estimate is None else _beside(estimate, 1e3)


def _beside(estimate: Estimate, scale: float) -> str:
    ends = interval(estimate, scale)
    return short(estimate.value * scale) + (f" [{ends}]" if ends else " [too few blocks]")


def _notes(found: Sequence[Standing], measured: Measured) -> list[str]:
    origin = measured.provenance
    runs = list(dict.fromkeys(one.run for one in found if one.run))
    notes = [
        f"Measured on {origin.cpu}, {origin.cores} cores, {origin.memory_bytes / (1 << 30):.0f} GiB, {origin.kernel}; "
        f"runs {', '.join(runs)}; in brackets 95 % intervals over blocks. Compare within one run only.",
        "start: asked for, until a first command answered. action: dispatch alone, of minimal commands. slowdown: how much "
        "longer the work itself takes than as a plain process. reset: back to the start state. "
        "~ no clock runs inside: by null actions.",
        "idle MiB: MemAvailable for one more live, idle sandbox. alive at once: so many were, and each answered; "
        "no limit was sought.",
        "a neighbour can observe: what a sandbox really saw of the host and of the sandbox beside it, of what "
        "bench/observe.py tries.",
    ]
    said = [f"{one.address} ({_versions(one)})" for one in found if one.versions]
    if said:
        notes.append(f"Versions: {'; '.join(said)}.")
    notes += [
        f"`{one.address}` is {NOT}: {one.reason or f'`excise measure {one.address}` does, where it runs'}."
        for one in found
        if not one.measured
    ]
    notes += [
        f"{name}: [{place}]({_link(place)}), parsed and rendered by a dry run, never run: it needs an account and costs money."
        for name, place in CLOUD
    ]
    if measured.foreign:
        notes.append("Not of the host that made this table.")
    return notes


def _link(place: str) -> str:
    """From docs/, where the table lies."""
    return place.removeprefix("docs/")


def _versions(one: Standing) -> str:
    return ", ".join(text if text.startswith(name) else f"{name} {text}" for name, text in one.versions.items())


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
