"""A row's terms over a whole rollout, in the order they are paid."""

from excise.stats.rows import Row

TERMS = ("start", "setup", "reset", "dispatch", "slowdown", "cleanup", "unattributed", "work")
"""All but the last are tax."""


def parts_s(row: Row) -> dict[str, float]:
    """Seconds of a rollout by term; they add up to `total_s`. Terms that nothing measured are left out."""
    whole = {
        "start": row.start_s,
        "setup": row.setup_s,
        "reset": row.reset_s,
        "cleanup": row.cleanup_s,
        "unattributed": row.unattributed_s,
    }
    each = {"dispatch": row.dispatch_s, "slowdown": row.slowdown_s, "work": row.work_s}
    found = {term: one.value for term, one in whole.items() if one is not None}
    found |= {term: one.value * row.actions for term, one in each.items() if one is not None}
    return {term: found[term] for term in TERMS if term in found}
