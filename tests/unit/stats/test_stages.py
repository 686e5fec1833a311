# A None where an estimate is expected fails the test: that is what the test is for.
# pyright: reportArgumentType=false, reportOptionalMemberAccess=false

"""A start by a control plane's stages: they and what they leave add up to it."""

import msgspec
import pytest

from excise.meter.records import Cell
from excise.meter.results import Results
from excise.report.facts import Facts
from excise.report.figures.orchestration import orchestration
from excise.report.figures.render import drawing
from excise.report.parts import Figure
from excise.report.story import story
from excise.stats.run import Run
from excise.stats.stages import UNATTRIBUTED, stages_s
from excise.trace import Span
from made_results import MS, made_header, made_trial

PLAIN = Cell(address="kubernetes", workload="t0")
PULLED = Cell(address="kubernetes", workload="t0", state="registry", concurrency=2)
BARE = Cell(address="chroot", workload="t0")
STAGES_MS = {"accepted": 10, "scheduled": 5, "started": 80}
AROUND_MS = 3
"""Of a create, before its request goes out and after its container runs."""


def orchestrated(cell, block, **pulled_ms):
    """A create of these stages, then a first answer, an action and a cleanup."""
    stages = {**STAGES_MS, **pulled_ms}
    whole = sum(stages.values()) + 2 * AROUND_MS
    made = [("create", whole, None, ""), ("ready", 20, None, ""), ("action", 5, 2, ""), ("cleanup", 7, None, "")]
    trials = []
    for lane in range(cell.concurrency):
        trial = made_trial(cell, block, made, lane=lane)
        at, inner = AROUND_MS * MS, []
        for name, ms in stages.items():
            inner.append(Span(name, "0badcafe", at, at + ms * MS, outcome="ok"))
            at += ms * MS
        trials.append(msgspec.structs.replace(trial, spans=(*trial.spans, *inner)))
    return trials


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    trials = []
    for block in range(8):
        trials += orchestrated(PLAIN, block) + orchestrated(PULLED, block, pulled=400)
        trials.append(made_trial(BARE, block, [("create", 4, None, ""), ("ready", 1, None, ""), ("action", 3, 2, "")]))
    header = made_header((PLAIN, PULLED, BARE))
    return Run(Results(header=header, trials=tuple(trials), path=tmp_path_factory.mktemp("r")))


def test_the_stages_and_what_they_leave_are_the_start(run):
    for row, pulled_ms in ((run.row(state="warm", address="kubernetes"), 0), (run.row(state="registry"), 400)):
        found = stages_s(row)
        assert sum(one.value for one in found.values()) == pytest.approx(row.start_s.value)
        assert row.start_s.value == pytest.approx((95 + pulled_ms + 2 * AROUND_MS + 20) / 1e3)
        assert found["accepted"].value == pytest.approx(0.010)
        assert found["ready"].value == pytest.approx(0.020)
        assert found[UNATTRIBUTED].value == pytest.approx(2 * AROUND_MS / 1e3)
        assert ("pulled" in found) == bool(pulled_ms)


def test_a_stage_that_took_no_time_is_told_as_such(run):
    """A node may be chosen before the API's answer is here; an image that was there is another matter: nothing was pulled."""
    trials = [trial for block in range(8) for trial in orchestrated(PLAIN, block, scheduled=0)]
    row = Run(Results(header=made_header((PLAIN,)), trials=tuple(trials), path=run.path))["kubernetes"]
    assert stages_s(row)["scheduled"].value == 0
    assert "pulled" not in stages_s(row)


def test_who_is_not_orchestrated_has_no_stages(run):
    assert stages_s(run["chroot"]) == {}


def test_the_stages_are_part_of_the_start_and_of_no_other_term(run):
    row = run.row(state="registry")
    assert row.unattributed_s.value == pytest.approx(0, abs=1e-9)
    assert row.total_s.value == pytest.approx((95 + 400 + 2 * AROUND_MS + 20 + 5 + 7) / 1e3)


def test_the_page_shows_them_by_state(run):
    section = next(one for one in story(Facts(run)) if one.place == "control-plane")
    (part,) = section.parts
    assert isinstance(part, Figure)
    assert part.table.heads[4::2] == (
        *("accepted (ms)", "scheduled (ms)", "pulled (ms)", "started (ms)", "ready (ms)", "unattributed (ms)", "start (ms)"),
        "n",
    )
    assert [row[2:4] for row in part.table.rows] == [("warm", "1"), ("registry", "2")]
    assert part.table.rows[1][8] == "400"
    assert part.table.rows[0][8] == "-"
    pytest.importorskip("vl_convert")
    for wide in (True, False):
        svg = drawing(part.draw(wide), f"o{wide}")
        assert "kubernetes registry x2" in svg
        assert "pulled" in svg
        assert "400 ms" in svg


def test_a_run_without_a_control_plane_has_no_such_figure(run):
    alone = Run(Results(header=made_header((BARE,)), trials=run._results.trials[-1:], path=run.path))
    assert orchestration(Facts(alone)) == []
