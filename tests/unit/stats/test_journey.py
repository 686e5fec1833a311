# A None where an estimate is expected fails the test: that is what the test is for.
# pyright: reportArgumentType=false, reportOptionalMemberAccess=false

"""A rollout behind a server: wire, server and sandbox add up to it, and the instrument's own calls are in none of them."""

import msgspec
import pytest

from excise.meter.records import Cell
from excise.meter.results import Results
from excise.report.tables import journey
from excise.stats.journey import SANDBOX, journey_s
from excise.stats.run import Run
from excise.trace import Span
from made_results import MS, made_header, made_trial

BEHIND = Cell(address="hosted:namespace", workload="t0")
HERE = Cell(address="namespace", workload="t0")
VERBS = [("create", 10, None, ""), ("ready", 4, None, ""), ("action", 6, 2, ""), ("null", 6, 2, ""), ("cleanup", 5, None, "")]
WIRE_MS, SERVER_MS = 2, 1


def behind(block):
    trial = made_trial(BEHIND, block, VERBS)
    spans = []
    for span in trial.spans:
        wire_ns, server_ns = span.start_ns + WIRE_MS * MS, span.start_ns + (WIRE_MS + SERVER_MS) * MS
        spans += (span, Span("wire", "", span.start_ns, wire_ns), Span("control", "", wire_ns, server_ns))
    return msgspec.structs.replace(trial, spans=tuple(spans))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    trials = [trial for block in range(8) for trial in (behind(block), made_trial(HERE, block, VERBS))]
    return Run(Results(header=made_header((BEHIND, HERE)), trials=tuple(trials), path=tmp_path_factory.mktemp("r")))


def test_the_parts_are_the_rollout(run):
    row = run["hosted:namespace"]
    found = journey_s(row)
    calls = len(VERBS) - 1  # the null action is the instrument's
    assert found["wire"].value == pytest.approx(calls * WIRE_MS / 1e3)
    assert found["control"].value == pytest.approx(calls * SERVER_MS / 1e3)
    assert sum(one.value for one in found.values()) == pytest.approx(row.total_s.value)
    assert found[SANDBOX].low is not None


def test_who_is_here_has_no_way_to_go(run):
    assert journey_s(run["namespace"]) == {}
    [table] = journey(run)
    assert [row[0] for row in table.rows] == ["hosted:namespace"]
