"""What to let go of: the least worth a byte when there is no place, and what nobody has asked for in a long time."""

import math
from collections.abc import Iterator

from excise.substrates.pool.policies.holding import worth
from excise.substrates.pool.policies.view import Seen, View


def evict(view: View, need_count: int, need_bytes: int) -> tuple[str, ...]:
    """States to take an idle entry of, one for each time a key is named, so that so many places and bytes come free.

    Fewer if there is not so much idle. The least saved seconds a byte first; among equals what was asked for longest ago.
    """
    order = sorted((key for key, seen in view.states.items() if seen.idle), key=lambda key: _rank(view, key))
    gone: list[str] = []
    freed_bytes = 0
    for key in order:
        seen = view.states[key]
        for _ in range(seen.idle):
            if len(gone) >= need_count and freed_bytes >= need_bytes:
                return tuple(gone)
            gone.append(key)
            freed_bytes += seen.bytes
    return tuple(gone)


def _rank(view: View, key: str) -> tuple[float, float, str]:
    seen = view.states[key]
    return worth(seen), seen.last_asked_s, key


def expired(view: View, idle_s: float) -> tuple[str, ...]:
    """States that nobody has asked for in `idle_s`, and of which there are idle ones; not what will come."""
    return tuple(key for key, seen in _unexpected(view) if view.now_s - seen.last_asked_s >= idle_s)


def next_expiry_s(view: View, idle_s: float) -> float:
    """When the next will be, of those that are not yet."""
    due = (seen.last_asked_s + idle_s for _, seen in _unexpected(view))
    return min((at_s for at_s in due if at_s > view.now_s), default=math.inf)


def _unexpected(view: View) -> Iterator[tuple[str, Seen]]:
    coming = {group.key for group in view.coming}
    return ((key, seen) for key, seen in view.states.items() if seen.idle and key not in coming)
