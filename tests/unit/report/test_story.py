"""The sentence, the receipts, what helps, and the tables of a page."""

import json
from pathlib import Path

import pytest

from excise.meter.records import Cell
from excise.meter.results import Results
from excise.plans import names as plan_names
from excise.report import paper, tables
from excise.report.calculator import calculator
from excise.report.facts import Facts, family
from excise.report.parts import Absent
from excise.report.receipt import receipt, receipts
from excise.report.sentence import caution, precision, sentence
from excise.report.story import helps, story
from excise.report.terms import parts_s
from excise.stats.run import Run
from made_results import made_header, made_trial, plain_cells, rich_cells, write


@pytest.fixture(scope="module")
def rich(tmp_path_factory):
    return Facts(Run.read(write(tmp_path_factory.mktemp("rich") / "r", rich_cells(), failing="bubblewrap")))


def facts(tmp_path, *arguments, **more):
    return Facts(Run.read(write(tmp_path / "r", *arguments, **more)))


def test_the_sentence_is_about_the_dearest_and_the_cheapest_that_isolate(rich):
    told = sentence(rich).replace("\N{NO-BREAK SPACE}", " ")
    assert told.startswith("Of every hour that rollouts of t2 spend on docker, ")
    assert "minutes are not work; on namespace the same rollout takes " in told
    dear, cheap = (
        rich.run.row(address="docker", workload="t2", shell="exec", reset="recreate"),
        rich.run.row(address="namespace", workload="t2"),
    )
    assert f" {60 * dear.tax_rate.value:.0f} minutes" in told
    assert f" {100 * cheap.total_s.value / dear.total_s.value:.0f} % of the time" in told
    assert "[" in precision(rich)
    assert "n = 8" in precision(rich)


def test_what_no_interval_stands_behind_is_told_as_such(tmp_path, rich):
    few = facts(tmp_path, plain_cells(), blocks=3)
    assert sentence(few).startswith("In 3 blocks, too few to be sure, of every hour")
    assert caution(few).startswith("3 blocks were measured")
    assert helps(few) == []
    evens = tables.break_evens(few)
    assert evens is not None
    assert {row[3] for row in evens.rows} == {"too few blocks"}
    assert caution(rich) == ""


def test_a_run_of_unusual_cells_is_told_by_them_and_not_by_the_reference_alone(tmp_path):
    cells = (Cell(address="chroot", workload="t0"), Cell(address="docker", workload="t0", concurrency=4))
    assert "docker (concurrency 4)" in sentence(facts(tmp_path, cells))
    more = tuple(Cell(address=address, workload="t0", concurrency=2) for address in ("docker", "namespace"))
    alike = facts(tmp_path / "alike", (*cells, *more))
    assert {row.cell.concurrency for row in alike.isolated} == {2}
    assert "on namespace (concurrency 2) the same rollout" in sentence(alike)


def test_what_may_be_chance_is_not_called_faster(tmp_path):
    alike = facts(tmp_path, plain_cells(("chroot", "docker", "docker?x=1")), blocks=8)
    assert "nothing else that was measured here is shown to be faster" in sentence(alike)


def test_control_blocks_stand_beside_the_run(tmp_path, rich):
    assert tables.control(rich.run) == []
    path = write(tmp_path / "r", plain_cells(("chroot", "namespace")))
    with (path / "trials.jsonl").open("a") as file:
        for line in (path / "trials.jsonl").read_text().splitlines()[2:]:
            file.write(json.dumps({**json.loads(line), "control": True}) + "\n")
    [table] = tables.control(Run.read(path))
    [row] = table.rows
    assert row[0] == "namespace"
    assert row[2:4] == row[4:6]
    assert row[6:] == ("yes", "8")


def test_setup_is_a_line_of_its_own_where_there_is_any():
    cell = Cell(address="chroot", workload="t0")
    pieces = [("create", 4.0, None, ""), ("setup", 30.0, None, ""), ("action", 3.0, 2.0, ""), ("cleanup", 1.0, None, "")]
    trials = tuple(made_trial(cell, block, pieces) for block in range(7))
    run = Run(Results(header=made_header((cell,)), trials=trials, path=Path("r")))
    assert [(item.name, item.price) for item in receipt(run.rows[0]).items][:2] == [("start", "4.00 ms"), ("set-up", "30.0 ms")]
    assert "set-up (ms)" in tables.every_row(run).heads
    assert "set-up (ms)" not in tables.every_row(made_run_without_setup(cell)).heads


def made_run_without_setup(cell):
    pieces = [("create", 4.0, None, ""), ("action", 3.0, 2.0, ""), ("cleanup", 1.0, None, "")]
    trials = tuple(made_trial(cell, block, pieces) for block in range(3))
    return Run(Results(header=made_header((cell,)), trials=trials, path=Path("r")))


def test_without_a_reference_the_sentence_claims_no_tax(tmp_path):
    told = sentence(facts(tmp_path, plain_cells(), reference=None))
    assert "work" not in told
    assert "docker" in told
    assert "times less" in told


def test_where_nothing_succeeded_the_sentence_says_so(tmp_path):
    found = facts(tmp_path, plain_cells(("docker",)), blocks=3, failing="docker", reference=None)
    assert sentence(found).startswith("Of every hour") is False
    everything = facts(tmp_path / "all", plain_cells(("docker",)), blocks=1, failing="docker", reference=None)
    assert everything.main  # block 1 succeeded: only every third fails
    only = Facts(Run.read(write(tmp_path / "none", plain_cells(("docker",)), blocks=0, failing="docker", reference=None)))
    assert sentence(only) == "No rollout of t0 succeeded, so there is nothing to tell but why."


def test_a_receipts_lines_add_up_to_its_total(rich):
    for row in rich.main:
        assert sum(parts_s(row).values()) == pytest.approx(row.total_s.value)
    docker = next(one for one in receipts(rich) if one.title == "docker")
    assert [item.name for item in docker.items] == ["start", "dispatch", "slowdown", "cleanup", "work"]
    assert docker.items[1].detail.startswith("12 x ~")
    assert docker.footer.endswith("8.")


def test_the_reference_has_no_slowdown_line(rich):
    chroot = receipt(rich.run.row(address="chroot", workload="t2"))
    assert "slowdown" not in [item.name for item in chroot.items]
    assert chroot.subtitle.endswith("the reference")


def test_at_most_three_lines_say_what_would_help_each_with_interval_and_command(rich):
    found = helps(rich)
    assert 1 <= len(found) <= 3
    assert all("[" in one.saving and one.command.startswith("excise measure docker") for one in found)


def test_a_family_is_a_workload_without_its_length():
    assert [family(name) for name in ("t2", "t2?actions=50", "t2?actions=50&preloaded=true", "t2?preloaded=true")] == [
        "t2",
        "t2",
        "t2?preloaded=true",
        "t2?preloaded=true",
    ]


def test_worker_hours_are_of_the_trials_that_were_as_long(rich):
    assert {row.actions for row in rich.long} == {150}
    assert all("(composed)" not in cell for row in paper.whole_rollouts(rich).rows for cell in row)


def test_table_1_has_the_papers_three_numbers(rich):
    rows = {row[0]: row[2] for row in paper.amplification(rich).rows}
    assert (rows["1 s a rollout"], rows["10 ms an action"], rows["100 ms an action"]) == ("278", "417", "4,167")


def test_table_2_counts_from_the_dearest(rich):
    rows = paper.whole_rollouts(rich).rows
    assert rows[0][0] == "docker"
    assert rows[0][4] == "-"
    hours = [float(row[2].replace(",", "")) for row in rows]
    assert hours == sorted(hours, reverse=True)
    assert float(rows[-1][4].replace(",", "")) == pytest.approx(hours[0] - hours[-1], abs=2)


def test_a_figure_that_was_not_measured_names_a_plan_that_exists(tmp_path):
    absent = [part for section in story(facts(tmp_path, plain_cells())) for part in section.parts if isinstance(part, Absent)]
    assert {part.name for part in absent} == {"composition", "completion"}
    for part in absent:
        plan = part.remedy.partition("--plan ")[2].partition("`")[0]
        assert plan in plan_names()


def test_failures_and_what_was_skipped_are_tables(rich):
    failed = tables.failures(rich.run)
    assert failed is not None
    assert {row[0] for row in failed.rows} == {"bubblewrap"}
    assert all("SandboxLost" in row[-1] for row in failed.rows)
    assert tables.skipped(rich.run) is None


def test_break_even_tells_every_pair(rich):
    found = tables.break_evens(rich)
    assert found is not None
    assert len(found.rows) == 6
    told = {row[:2]: row[2] for row in found.rows}
    assert told["bubblewrap", "docker+guest"].startswith("docker+guest above ")


def test_the_calculators_blocks_are_the_rows_own(rich):
    data = calculator(rich)
    assert data is not None
    for shown, row in zip(data["rows"], (row for row in rich.rows if row.costs), strict=True):
        for name in ("rollouts", "actions", "fixed", "acting"):
            values = shown[name] if isinstance(shown[name], list) else [shown[name]] * len(shown["ids"])
            assert sum(values) == pytest.approx(row.blocks.sums[name], rel=1e-8)
    assert data["usual"]["a"] == "docker on t2"
    assert data["usual"]["b"] == "namespace on t2"
