"""What the page shows, as data: of the server as a whole, and of this key's own sandboxes."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from excise.errors import SandboxLost
from excise.server.figures import Life
from excise.server.host import Host
from excise.server.keys import Key
from excise.stats.quantile import point
from excise.substrates.pool import Pool

if TYPE_CHECKING:
    from excise.server.server import Server


def status(server: "Server", key: Key, began_s: float) -> dict[str, Any]:
    host, figures = server.host, server.host.figures
    own = {held.id for held in host.of(key)}
    return {
        "address": host.substrate.address,
        "up_s": time.time() - began_s,
        "draining": host.draining,
        "key": key.name,
        "caps": {"sandboxes": key.sandboxes, "snapshots": key.snapshots, "rate": key.rate},
        "sandboxes": host.listed(key, {}),
        "all_sandboxes": host.count,
        "channels": len(server.sessions),
        "snapshots": len(host.taken(key)),
        "ended": [life.id for life in figures.ended if life.key == key.name and life.id not in own],
        "expired": figures.expired,
        "readopted": figures.readopted,
        "cleaned": figures.cleaned,
        "create": _spread(sorted(figures.create_s)),
        "action": _spread(sorted(figures.action_s)),
        "calls": sum(figures.calls.values()),
        "pool": _pool(host),
    }


def _spread(seconds: Sequence[float]) -> dict[str, float] | None:
    if not seconds:
        return None
    return {"n": len(seconds), "p50_s": point(seconds, 0.5), "p95_s": point(seconds, 0.95)}


def _pool(host: Host) -> dict[str, Any] | None:
    if not isinstance(host.substrate, Pool):
        return None
    figures = host.substrate.figures()
    return {
        "hits": dict(figures.hits),
        "misses": figures.misses,
        "idle": dict(figures.idle),
        "claimed": figures.claimed,
        "count": figures.count,
        "cap": figures.count_cap,
        "claim": _spread(sorted(figures.claim_s)),
    }


def waterfall(host: Host, key: Key, id: str) -> dict[str, Any]:
    """One sandbox's verbs; of one that was just closed, too."""
    lives: list[Life] = [held.life for held in host.of(key)] + [life for life in host.figures.ended if life.key == key.name]
    for life in lives:
        if life.id == id:
            return {"id": id, "acts": list(life.acts)}
    raise SandboxLost(f"there is no sandbox {id[:80]} here")
