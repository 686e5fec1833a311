import pytest

from excise.meter.records import NULL, Cell, Quiet, Trial
from excise.stats.condensed import condense
from excise.stats.decomposition import decompose
from excise.trace import Span

MS = 10**6


def trial(*spans, wall_ms, address="x"):
    """A trial from (name, duration_ms, guest_ms) in turn, with nothing between the spans."""
    at, made = 0, []
    for name, duration_ms, guest_ms in spans:
        end = at + round(duration_ms * MS)
        made.append(Span(name, "s", at, end, guest_ns=None if guest_ms is None else round(guest_ms * MS)))
        at = end
    return condense(
        Trial(
            run="r",
            block=1,
            position=0,
            cell=Cell(address=address, workload="t0"),
            wall_ns=round(wall_ms * MS),
            apart_ns=sum(span.duration_ns for span in made if span.name == NULL),
            cpu_s=0.0,
            quiet=Quiet(window_ns=0),
            spans=tuple(made),
        )
    )


REFERENCE = trial(
    ("create", 1, None),
    ("ready", 1, None),
    ("action", 3, 2),
    ("null", 2, 1),
    ("action", 5, 4),
    ("null", 2, 1),
    ("cleanup", 1, None),
    wall_ms=15,
)


def test_with_a_clock_inside_every_term_is_measured():
    mine = trial(
        ("create", 100, None), ("ready", 20, None), ("action", 12, 3), ("action", 16, 6), ("cleanup", 30, None), wall_ms=180
    )
    terms = decompose(mine, REFERENCE)
    assert terms.start_s == pytest.approx(0.120)
    assert terms.dispatch_s == pytest.approx(0.009 + 0.010)
    assert terms.slowdown_s == pytest.approx(0.001 + 0.002)
    assert terms.work_s == pytest.approx(0.002 + 0.004)
    assert terms.cleanup_s == pytest.approx(0.030)
    assert terms.unattributed_s == pytest.approx(0.002)
    assert terms.total_s == pytest.approx(0.180) == mine.total_s
    assert terms.tax_s == pytest.approx(0.174)
    assert not terms.estimated


def test_without_one_dispatch_is_the_null_actions_and_they_are_not_in_the_total():
    mine = trial(
        ("create", 100, None), ("ready", 20, None), ("action", 54, None), ("null", 51, None), ("null", 49, None),
        ("action", 58, None), ("cleanup", 30, None), wall_ms=362,
    )  # fmt: skip
    terms = decompose(mine, REFERENCE)
    assert terms.estimated
    assert terms.dispatch_s == pytest.approx(0.050 + 0.048)
    assert terms.slowdown_s == pytest.approx((0.054 - 0.050 - 0.002) + (0.058 - 0.048 - 0.004))
    assert terms.total_s == pytest.approx(0.262) == mine.total_s


def test_the_reference_has_no_slowdown():
    terms = decompose(REFERENCE, REFERENCE)
    assert terms.slowdown_s == 0
    assert terms.work_s == pytest.approx(0.006)
    assert terms.total_s == pytest.approx(0.011)


def test_other_actions_than_the_references_are_not_paired():
    with pytest.raises(ValueError, match="1 actions cannot be paired"):
        decompose(trial(("action", 1, 1), wall_ms=1), REFERENCE)
