"""A server's figures as Prometheus metrics; those of its pool, where it serves one, are the pool's own."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from excise.loading.exposition import Family, Labels, text
from excise.loading.metrics import of_pool
from excise.server.keys import Key
from excise.stats.quantile import point
from excise.substrates.pool import Pool

if TYPE_CHECKING:
    from excise.server.server import Server


def exposition(server: "Server", key: Key) -> str:
    return text(families(server, key))


def families(server: "Server", key: Key) -> list[Family]:
    """`key`: who asks. Of others' it learns how many sandboxes there are in all, and neither whose nor by which name."""
    host, figures = server.host, server.host.figures
    calls = [({"verb": verb, "outcome": outcome}, count) for (verb, outcome), count in sorted(figures.calls.items())]
    kept = sum(session.channel.kept_bytes for session in server.sessions.values())
    found = [
        _family("calls_total", "counter", "Calls, by verb and what came of them.", calls),
        _family("sandboxes", "gauge", "Live sandboxes of the key that asks.", [({"key": key.name}, len(host.of(key)))]),
        _one("all_sandboxes", "gauge", "Live sandboxes of all keys.", host.count),
        _one("channels", "gauge", "Clients' channels, those without a connection included.", len(server.sessions)),
        _one("connections", "gauge", "Open connections.", len(server.door.open)),
        _one("kept_bytes", "gauge", "Sent, and not yet seen by their clients.", kept),
        _one("expired_total", "counter", "Sandboxes whose lease nobody renewed.", figures.expired),
        _one("readopted_total", "counter", "Sandboxes of a server before this one that are held again.", figures.readopted),
        _one("cleaned_total", "counter", "Sandboxes of a server before this one that are gone.", figures.cleaned),
        _one("ledger_behind", "gauge", "1 while what is held cannot be written down.", float(host.is_behind)),
        _one("draining", "gauge", "1 while the server is being stopped.", float(host.draining)),
        _family("refused_total", "counter", "Requests and connections refused, by why.", _by("why", figures.refused)),
        _recent("recent_create_seconds", "How long the last creates took, without the wire.", sorted(figures.create_s)),
        _recent("recent_action_seconds", "How long the last actions took, without the wire.", sorted(figures.action_s)),
    ]
    if isinstance(host.substrate, Pool):
        found += of_pool(host.substrate.figures())
    return found


def _family(name: str, kind: Literal["counter", "gauge"], help: str, samples: Sequence[tuple[Labels, float]]) -> Family:
    return Family(name=f"excise_serve_{name}", kind=kind, help=help, samples=samples)


def _one(name: str, kind: Literal["counter", "gauge"], help: str, value: float) -> Family:
    return _family(name, kind, help, [({}, value)])


def _by(label: str, counted: dict[str, int]) -> list[tuple[Labels, float]]:
    return [({label: name}, count) for name, count in sorted(counted.items())]


def _recent(name: str, help: str, seconds: Sequence[float]) -> Family:
    samples = [({"quantile": str(q)}, point(seconds, q)) for q in (0.5, 0.95)] if seconds else []
    return _family(name, "gauge", help, samples)
