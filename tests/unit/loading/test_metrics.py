"""What is scraped is what Prometheus' own parser reads, and the small server says nothing else."""

import asyncio
import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from excise.errors import SpecError
from excise.loading import exposition
from excise.loading.exposition import CONTENT_TYPE, Family, Histogram, serving, text
from excise.loading.metrics import BOUNDS_S, of_load, of_pool
from excise.loading.processor import Spent
from excise.loading.tally import Claim, Tally
from excise.substrates.pool.figures import Failing, Figures, Quarantine

SPENT = Spent(own_s=1.5, children_s=2.25, host_s=40.0)


def made_figures(**more: object) -> Figures:
    known: dict[str, object] = {
        "hits": {"deps": 7, "sibling": 2},
        "misses": 3,
        "failed": 1,
        "claim_s": (0.25, 0.5, 0.75),
        "refill_lag_s": (),
        "refilled": 9,
        "unused": 2,
        "unused_s": 1.25,
        "dead": 1,
        "reused": 4,
        "discarded": 5,
        "evicted": 0,
        "expired": 1,
        "quarantine": (Quarantine(state="s", sandbox="b", at_s=1.0, evidence=("/tmp/left",)),),
        "failing": (Failing(state="s", reason='it said "no"\n', attempts=2, next_s=4.0),),
        "held_back": "",
        "idle": {"deps": 3, "image": 1},
        "idle_bytes": 4096,
        "templates": 1,
        "filling": 0,
        "claimed": 2,
        "waiting": 0,
        "count": 6,
        "count_cap": 8,
        "memory_bytes": 8192,
        "memory_cap_bytes": None,
        "cpu_s": 3.5,
    }
    return Figures(**(known | more))  # pyright: ignore[reportArgumentType]


def made_tally() -> Tally:
    tally = Tally()
    tally.arrived = 6
    for claim_s in (0.0004, 0.02, 0.02, 300.0):
        tally.claimed(Claim(at_s=0, name="a", late_s=0, claim_s=claim_s, hit="deps"))
    tally.claimed(Claim(at_s=0, name="a", late_s=0, claim_s=1, failure="no"))
    return tally


def parsed(given: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(given)
        for sample in family.samples
    }


def test_every_figure_is_read_by_prometheus() -> None:
    found = parsed(text(of_pool(made_figures())))
    assert found["excise_pool_claims_total", (("hit", "deps"),)] == 7
    assert found["excise_pool_claims_total", (("hit", "miss"),)] == 3
    assert found["excise_pool_recent_claim_seconds", (("quantile", "0.5"),)] == 0.5
    assert found["excise_pool_idle", (("depth", "image"),)] == 1
    assert found["excise_pool_unused_seconds_total", ()] == 1.25
    assert found["excise_pool_quarantined_total", ()] == 1
    assert found["excise_pool_failing_states", ()] == 1
    assert found["excise_pool_count_cap", ()] == 8
    assert not any(name.startswith(("excise_pool_memory_cap", "excise_pool_recent_refill")) for name, _ in found)


def test_a_cap_and_a_refill_lag_are_there_once_they_are_known() -> None:
    found = parsed(text(of_pool(made_figures(memory_cap_bytes=1 << 40, refill_lag_s=(2.0,), held_back="pressure"))))
    assert found["excise_pool_memory_cap_bytes", ()] == 1 << 40
    assert found["excise_pool_recent_refill_lag_seconds", (("quantile", "0.95"),)] == 2.0
    assert found["excise_pool_held_back", ()] == 1


def test_claim_seconds_are_a_histogram_that_only_grows_with_its_bounds() -> None:
    given = text(of_load(made_tally(), SPENT))
    families = {family.name: family for family in text_string_to_metric_families(given)}
    family = families["excise_load_claim_seconds"]
    assert family.type == "histogram"
    buckets = [(float(one.labels["le"]), one.value) for one in family.samples if one.name.endswith("_bucket")]
    assert [bound for bound, _ in buckets] == [*BOUNDS_S, math.inf]
    counts = [count for _, count in buckets]
    assert counts == sorted(counts)
    assert dict(buckets)[0.001] == 1
    assert dict(buckets)[0.025] == 3
    assert (dict(buckets)[120.0], dict(buckets)[math.inf]) == (3, 4)
    found = parsed(given)
    assert found["excise_load_claim_seconds_count", (("hit", "deps"),)] == 4
    assert found["excise_load_claim_seconds_sum", (("hit", "deps"),)] == pytest.approx(300.0404)
    assert found["excise_load_claim_failures_total", ()] == 1
    assert found["excise_load_waiting", ()] == 1
    assert found["excise_load_cpu_seconds_total", (("of", "children"),)] == 2.25


def test_every_metric_says_what_it_is_once() -> None:
    given = text([*of_pool(made_figures()), *of_load(made_tally(), SPENT)])
    helped = [line.split()[2] for line in given.splitlines() if line.startswith("# HELP")]
    typed = [line.split()[2] for line in given.splitlines() if line.startswith("# TYPE")]
    assert helped == typed
    assert len(set(helped)) == len(helped) > 25
    assert all(family.documentation for family in text_string_to_metric_families(given))


@pytest.mark.parametrize("value", ['a "quoted" word', "back\\slash", "two\nlines", "\\n", 'end\\"', "", "größe {}=,#"])
def test_a_label_comes_back_as_it_was(value: str) -> None:
    given = text([Family(name="m", kind="gauge", help="a \\ and\na line", samples=[({"one": value, "two": "x"}, 1.0)])])
    assert list(parsed(given)) == [("m", (("one", value), ("two", "x")))]


@pytest.mark.parametrize("value", [0.0, 1e-9, 0.1, 1e21, 123456789.25, float("inf"), float("nan")])
def test_a_number_comes_back_as_it_was(value: float) -> None:
    given = text([Family(name="m", kind="gauge", help="h", samples=[({}, value)])])
    assert parsed(given)["m", ()] == pytest.approx(value, rel=0, abs=0, nan_ok=True)


def test_a_histogram_without_values_is_one_of_zeros() -> None:
    given = text([Family(name="m", kind="histogram", help="h", samples=[({}, Histogram(within=[(1.0, 0)], count=0, total=0))])])
    assert parsed(given)["m_bucket", (("le", "+Inf"),)] == 0


# ---- the server


async def asked(url: str, request: bytes) -> bytes:
    host, _, port = url.removeprefix("http://").removesuffix("/metrics").rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    writer.write(request)
    await writer.drain()
    found = await reader.read()
    writer.close()
    await writer.wait_closed()
    return found


def served(request: bytes) -> tuple[bytes, bytes]:
    async def ask() -> bytes:
        async with serving(lambda: "one 1\n", 0) as url:
            assert url.startswith("http://127.0.0.1:")
            return await asked(url, request)

    head, _, body = asyncio.run(ask()).partition(b"\r\n\r\n")
    return head, body


def test_metrics_are_served_on_this_machine_alone() -> None:
    head, body = served(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert f"Content-Type: {CONTENT_TYPE}".encode() in head
    assert body == b"one 1\n"


@pytest.mark.parametrize(
    ("request_", "status", "body"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"404", b"the metrics are at /metrics\n"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405", b"ask with GET\n"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", b"200", b""),
        (b"GET /metrics?x=1 HTTP/1.1\r\n\r\n", b"200", b"one 1\n"),
    ],
)
def test_what_else_is_asked_for(request_: bytes, status: bytes, body: bytes) -> None:
    head, found = served(request_)
    assert head.split()[1] == status
    assert found == body


def test_a_request_without_an_end_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "_ASKING_S", 1000.0)  # for its length, not for its slowness
    head, body = served(b"GET /metrics HTTP/1.1\r\n" + b"x" * (1 << 16))
    assert (head, body) == (b"", b"")


def test_a_request_that_does_not_come_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "_ASKING_S", 0.05)
    assert served(b"GET /metr") == (b"", b"")


def test_a_port_in_use_is_one_sentence() -> None:
    async def twice() -> None:
        async with serving(lambda: "", 0) as url:
            port = int(url.removesuffix("/metrics").rpartition(":")[2])
            with pytest.raises(SpecError, match="name another port with --metrics"):
                async with serving(lambda: "", port):
                    pass

    asyncio.run(twice())
