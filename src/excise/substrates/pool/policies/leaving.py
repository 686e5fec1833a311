"""What to let go of: the least worth a byte when there is no place, and what nobody has asked for in a long time."""

from collections.abc import Collection

from excise.substrates.pool.policies.holding import worth
from excise.substrates.pool.policies.view import View


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


def expired(view: View, idle_s: float, fixed: Collection[str] = ()) -> tuple[str, ...]:
    """States that nobody has asked for in `idle_s`, and of which there are idle ones; not what will come, nor is fixed."""
    kept = {*fixed, *(group.key for group in view.coming)}
    return tuple(
        key for key, seen in view.states.items() if seen.idle and key not in kept and view.now_s - seen.last_asked_s >= idle_s
    )
