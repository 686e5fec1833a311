import io
import re

import msgspec
import pytest

from excise.meter.results import Results
from excise.report.markdown import markdown
from excise.report.terminal import show, text
from excise.stats.run import Run
from excise.trace import Span
from synthetic_run import cell
from synthetic_run import make_run as make_synthetic


def rows(page):
    """The table's rows by their first word."""
    found = {}
    for line in page.splitlines():
        if line.strip():
            found.setdefault(line.split()[0], line.split())
    return found


def test_a_row_says_what_was_measured(run):
    found = rows(text(run))
    # Means of an equal number of blocks at 1.0 and 1.5 times: 1.25 times each; dispatch is null less work(null): 52 - 2.
    assert found["chroot"][1:] == ["6.25", "1.25", "0", "2.50", "12.5", "12.5", "15.0", "80.0", "3.47", "0.25", "60"]
    assert found["docker"][1:] == ["312", "~62.5", "~3.75", "75.0", "456", "456", "548", "99.5", "127", "0.25", "60"]
    assert "reference" in found


@pytest.mark.parametrize("width", [80, 120])
def test_the_page_fits(run, width):
    page = text(run, width)
    assert max(map(len, page.splitlines())) <= width
    assert all(name in page for name in ("start", "dispatch", "slowdown", "cleanup", "total", "tax rate"))
    assert "99.5" in page


def test_a_number_is_left_out_whole_and_never_cut(run):
    for width in range(62, 130):
        words = [word for line in text(run, width).split("whole blocks")[0].splitlines() for word in line.split()]
        assert "99.5" in words
        assert "~62.5" in words
        assert not any("\u2026" in word for word in words)


def test_a_long_address_is_explained_below(run):
    page = text(run)
    assert "docker (a): docker?host=tcp://10.0.0.17:2375" in page
    assert rows(page)["docker"][1] == "312"


def test_only_a_wide_page_has_every_column(run):
    assert all(name in text(run, 120) for name in ("worker-h", "p50", "p95", "CPU"))
    narrow = text(run, 80).split("\n\n")[0]
    assert not any(name in narrow for name in ("worker-h", "p50", "p95", "CPU"))


def test_failures_are_counted_with_their_reason_and_interval(run):
    page = " ".join(text(run).split())
    assert " 45/60 " in page
    assert "succeeded in 45 of 60 trials (75.0 %, 62.8..84.2): 15 x SandboxLost: the daemon closed | the connection" in page


def test_what_is_missing_is_said_with_its_remedy(run):
    assert "Skipped runc: runc is not installed; apt-get install runc." in text(run)


def test_a_p95_without_an_interval_is_not_printed(made):
    page = rows(text(made(58)))
    assert page["chroot"][7] == "n<59"


def test_too_few_blocks_give_no_median_and_no_ranges(made):
    page = text(made(3))
    assert rows(page)["chroot"][6] == "n<6"
    assert ".." not in page.split("3 whole blocks")[0]


def test_without_a_reference_there_is_no_tax_rate_and_the_page_says_why(made):
    page = text(made(60, reference=None))
    assert rows(page)["docker"][8] == "-"
    assert "No reference ran" in page


def test_unattributed_time_above_one_percent_is_called_a_fault(made):
    whole = made(10)._results
    slow = tuple(msgspec.structs.replace(t, wall_ns=t.wall_ns + 10**6) for t in whole.trials)
    page = " ".join(text(Run(Results(header=whole.header, trials=slow, path=whole.path))).split())
    assert "(chroot): above 1 % that is a fault of the meter" in page
    assert "above 1 %" not in text(made(10))


def test_no_colour_goes_where_there_is_no_terminal(run):
    file = io.StringIO()
    show(run, file)
    assert "\x1b" not in file.getvalue()
    assert "docker" in file.getvalue()


def test_markdown_has_every_column(run):
    lines = markdown(run).splitlines()
    assert lines[0].startswith("| substrate | start (ms) | dispatch (ms/action) |")
    assert lines[2].startswith("| chroot [reference] | 6.25 [")
    assert [line.count("|") for line in lines[:5]] == [15] * 5
    assert lines[-1] == "- Results: results/x"


def test_what_a_narrow_table_has_no_room_for_is_a_sentence(run):
    sentence = "Worker-hours per million rollouts: chroot 3.47, docker 127, docker (a) "
    assert sentence in " ".join(text(run, 80).split())
    assert sentence not in " ".join(text(run, 120).split())


@pytest.mark.parametrize("width", [80, 100, 120])
def test_every_heading_is_explained_below(run, width):
    page = text(run, width)
    below = " ".join(page.split("\n\n")[1].split())
    for heading in set(page.splitlines()[0].replace("tax rate", "tax_rate").split()) - {"substrate"}:
        assert f"{heading.replace('_', ' ')}: " in below


def test_what_else_ran_on_the_host_is_said_where_its_cpu_is_shown(run):
    # 10 ms of every quiet window of 20 ms.
    assert "before trials 0.50 cores were busy with something else" in " ".join(text(run, 120).split())
    assert "busy with something else" not in " ".join(text(run, 80).split())


def test_trials_whose_reference_failed_are_told(made):
    whole = made(10)._results
    lost = tuple(
        msgspec.structs.replace(t, failure="lost") if (t.cell.address, t.block) == ("chroot", 3) else t for t in whole.trials
    )
    page = " ".join(text(Run(Results(header=whole.header, trials=lost, path=whole.path))).split())
    assert "docker: in 1 of its 10 trials the reference failed" in page
    assert "the reference failed" not in text(made(10))


def test_time_counted_twice_is_a_fault_too(made):
    whole = made(10)._results
    short = tuple(msgspec.structs.replace(t, wall_ns=t.wall_ns - 10**6) for t in whole.trials)
    page = " ".join(text(Run(Results(header=whole.header, trials=short, path=whole.path))).split())
    assert "(chroot): above 1 % that is a fault of the meter" in page


def test_a_reference_that_failed_is_not_called_missing(made):
    whole = made(6)._results
    trials = tuple(
        msgspec.structs.replace(one, failure="exit code 1, not 0") if one.cell.address == "chroot" else one
        for one in whole.trials
    )
    page = " ".join(text(Run(msgspec.structs.replace(whole, trials=trials))).split())
    assert "The reference (chroot) did not succeed, so work is not known" in page
    assert "No reference ran" not in page


def test_rollouts_at_once_have_their_waiting_in_the_table():
    lines = {cell("chroot"): (1, 1), cell("docker", concurrency=32): (300, 50)}
    page = text(make_synthetic(lines, blocks=8))
    assert "waiting: from when a rollout was to begin to its end" in " ".join(page.split())
    assert "waiting" not in text(make_synthetic({cell("chroot"): (1, 1)}, blocks=8))
    # Of a run with long names too no number is cut: waiting goes as others do.
    long = "t2?runner=plain&preloaded=true"
    wide = text(
        make_synthetic({**lines, cell("chroot", long): (1, 1), cell("docker", long, reset="snapshot"): (30, 5)}, blocks=8)
    )
    assert [line.split()[-1] for line in wide.splitlines() if line.startswith("docker")][:2] == ["256", "8"]
    assert "+ cleanup;" in " ".join(wide.split())


def test_enough_trials_in_too_few_blocks_are_not_called_few_trials():
    page = text(make_synthetic({cell("chroot"): (1, 1), cell("docker", concurrency=32): (300, 50)}, blocks=3))
    assert "too few" in next(line for line in page.splitlines() if line.startswith("docker"))


def test_who_kept_the_state_after_set_up_is_named():
    run = make_synthetic({cell("chroot"): (1, 1), cell("docker"): (300, 50)}, blocks=6)
    assert "kept from an earlier rollout" not in text(run)
    trials = tuple(
        msgspec.structs.replace(one, spans=(*one.spans, Span("setup", "x", 0, 10**6))) if one.cell.address == "chroot" else one
        for one in run._results.trials
    )
    page = " ".join(text(Run(msgspec.structs.replace(run._results, trials=trials))).split())
    assert "docker starts from the state after set-up, kept from an earlier rollout; the others set up every time." in page


def test_work_of_several_workloads_says_which():
    lines = {cell("chroot"): (1, 1), cell("chroot", "t1"): (1, 1)}
    page = " ".join(text(make_synthetic(lines, blocks=6, spread=0.0)).split())
    assert re.search(r"in the same block, here [\d.]+ ms on t0, [\d.]+ ms on t1\.", page)


def test_where_sandboxes_live_on_a_total_has_a_reset_in_place_of_its_ends():
    run = make_synthetic({cell("chroot"): (1, 1), cell("docker", reset="snapshot"): (30, 5)}, blocks=6)
    trials = tuple(
        msgspec.structs.replace(one, spans=(*one.spans, Span("reset", "x", 0, 10**6))) if one.cell.reset == "snapshot" else one
        for one in run._results.trials
    )
    page = " ".join(text(Run(msgspec.structs.replace(run._results, trials=trials))).split())
    assert "(dispatch + slowdown + work) + cleanup (or reset);" in page
