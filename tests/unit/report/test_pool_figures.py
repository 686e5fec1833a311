"""Figures and tables of claims: known times come out as they went in, and every drawing can be drawn."""

import re
import xml.etree.ElementTree as ET

import msgspec
import pytest

from excise.errors import SpecError
from excise.meter.pool_records import Claim, PoolCell
from excise.meter.results import Writer, load_pools
from excise.report import pools
from excise.report.figures.bursts import burst
from excise.report.figures.hits import Found, of_trials, over_time
from excise.report.figures.mixture import against_exact, mixture, places
from excise.report.figures.theme import LIGHT
from excise.report.figures.warm import by_depth
from excise.report.parts import Absent, Figure
from excise.report.pool_story import pool_story
from excise.report.pool_words import HIT_TONES, MODE_TONES, STARTS, least_and_most, start_of
from excise.report.sources import read_pools
from excise.stats.pools import cpu_ratio, ratio, rows, waited_s
from made_pools import CPU_S, burst_cells, made_pool_header, made_pool_trial, made_pool_trials, mixed_cells, warm_cells
from made_results import ORIGIN


@pytest.fixture(scope="module")
def mixed():
    return made_pool_trials(mixed_cells())


@pytest.fixture(scope="module")
def figures(mixed):
    warm, many = made_pool_trials(warm_cells()), made_pool_trials(burst_cells())
    parts = [*by_depth(rows(warm)), *burst(rows(many)), *mixture(rows(mixed), mixed), *of_trials(mixed)]
    parts += over_time("load-hits", [Found(at_s=n / 3, hit="deps" if n % 5 else "odd") for n in range(60)])
    assert all(isinstance(part, Figure) for part in parts)
    return {part.name: part for part in parts}


# ---- numbers


def made(cell, block, *claims, **more):
    return made_pool_trial(cell, block, claims=claims, **more)


PLAIN = PoolCell(source="namespace", address="namespace", claims=2)


def test_a_claim_waits_from_when_it_was_to_be_made() -> None:
    assert waited_s(Claim(0, 5, 2_000_000_000, 1_000_000_000, 9, "deps")) == 3.0


def test_rows_are_of_measured_claims_that_succeeded() -> None:
    good, bad = Claim(0, 0, 0, 10**9, 2 * 10**9, "deps"), Claim(1, 0, 0, 99 * 10**9, 10**11, "", "CreateError: no")
    trials = [made(PLAIN, 0, bad, bad), *(made(PLAIN, n, good, bad, cpu_s=3.0, lead_cpu_s=7.0) for n in range(1, 9))]
    (row,) = rows(trials)
    assert (row.blocks, row.n, row.attempted) == (8, 8, 16)
    assert row.mean_s is not None
    assert (row.mean_s.value, row.mean_s.low, row.mean_s.high) == pytest.approx((1.0, 1.0, 1.0))
    assert row.p50_s is not None
    assert row.p50_s.value == 1.0
    assert row.cpu_s is not None
    assert row.cpu_s.value == pytest.approx(1.5)  # of each claim that was asked for, failed or not
    assert row.ahead_cpu_s is not None
    assert row.ahead_cpu_s.value == pytest.approx(7.0)
    assert row.to_floor is not None
    assert row.to_floor.value == pytest.approx(1000.0)
    assert row.hits == (("deps", 8),)
    assert row.failures == (("CreateError: no", 8),)


def test_a_cell_that_never_succeeded_has_no_numbers_and_its_reason() -> None:
    (row,) = rows([made_pool_trial(PLAIN, n, claims=(), failure="SpecError: no sibling") for n in range(1, 9)])
    assert (row.n, row.attempted, row.p50_s, row.mean_s, row.cpu_s, row.to_floor) == (0, 0, None, None, None, None)
    assert row.failures == (("SpecError: no sibling", 8),)


def test_rows_stand_in_the_order_of_the_plan() -> None:
    """A block has its cells in random order."""
    cells = warm_cells()
    assert [row.cell for row in rows(made_pool_trials(cells[::-1]), cells)] == cells


def test_a_ratio_is_within_blocks() -> None:
    """Blocks differ tenfold, the two cells by exactly two: the interval says so."""
    other = msgspec.structs.replace(PLAIN, address="pool:namespace", mode="exact", state="pooled")
    trials = []
    for block in range(1, 9):
        took = 10**8 * (10 if block % 2 else 1)
        trials += [made(PLAIN, block, Claim(0, 0, 0, 2 * took, 0)), made(other, block, Claim(0, 0, 0, took, 0, "deps"))]
    found = ratio(trials, PLAIN, other)
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))
    spent = cpu_ratio(trials, PLAIN, other)
    assert spent is not None
    assert spent.value == pytest.approx(CPU_S["none"] / CPU_S["exact"])
    assert ratio(trials, PLAIN, msgspec.structs.replace(PLAIN, claims=9)) is None


def test_all_nine_cells_are_there_whatever_they_show(mixed) -> None:
    cells = places(rows(mixed))
    assert list(cells) == [(zipf, percent) for zipf in (0.0, 0.8, 1.2) for percent in (10, 25, 50)]
    assert all([row.cell.mode for row in own] == ["none", "none", "exact", "closest"] for own in cells.values())
    assert len(against_exact(rows(mixed), mixed)) == 9


def test_closest_against_exact_is_told_with_its_count(mixed) -> None:
    notes = pools.pool_notes(made_pool_header(mixed_cells()), mixed)
    compared = [note for note in notes if "closest state / exact match" in note]
    assert len(compared) == 9
    assert any(
        re.search(r"faster beyond its interval in \d of 9 cells, slower in \d; at most it takes", note) for note in notes
    )


def test_the_sentence_of_a_mix_is_how_the_two_pools_compare(mixed) -> None:
    told = pools.pool_sentence(mixed)
    assert re.search(r"closest state takes 0\.\d+ to 0\.\d+ times as long as handing out exact matches, over 9 cells", told)


def test_a_plan_of_ones_own_names_files_that_can_be_written(tmp_path) -> None:
    pytest.importorskip("vl_convert")
    from excise.report.bundle import write_pools

    runs = read_pools([written(tmp_path / "own", burst_cells(), "../my plans/Burst.toml")])
    assert runs is not None
    write_pools(tmp_path / "out", runs)
    assert (tmp_path / "out/tables/burst-rows.csv").exists()


def test_a_cell_in_which_closest_is_worse_is_told_as_such(mixed) -> None:
    """The two modes' trials exchanged: what was better is worse, and nothing hides it."""
    swap = {"exact": "closest", "closest": "exact"}
    turned = [
        msgspec.structs.replace(one, cell=msgspec.structs.replace(one.cell, mode=swap.get(one.cell.mode, "none")))
        for one in mixed
    ]
    (figure,) = mixture(rows(turned), turned)
    assert isinstance(figure, Figure)
    assert "faster than the exact match beyond its interval in 0 of 9" in figure.alt
    worse = re.search(r"slower in (\d)", figure.alt)
    assert worse is not None
    assert int(worse[1]) >= 5


def test_every_start_state_has_its_words_and_place() -> None:
    assert {start_of(cell) for cell in warm_cells()} == set(STARTS) - {"idle: whatever was left"}


def test_the_sentence_names_the_dearest_and_the_cheapest() -> None:
    told = least_and_most(rows(made_pool_trials(warm_cells())))
    assert re.search(
        r"takes [\d.]+ s on docker \(no pool, nothing cached\) and [\d.]+ ms on namespace \(idle: all of it\)", told
    )
    assert "nothing to tell" in least_and_most([])


# ---- drawings


def test_there_is_every_figure(figures) -> None:
    assert set(figures) == {"claims-by-depth", "burst", "mixed-namespace", "hits-over-time", "load-hits"}


def test_core_seconds_stand_beside_the_time(figures) -> None:
    for name in ("claims-by-depth", "burst", "mixed-namespace"):
        assert any(head.startswith("core-s") for head in figures[name].table.heads), name
    assert len(figures["mixed-namespace"].table.rows) == 9 * 4
    assert len(figures["claims-by-depth"].table.rows) == 27


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("name", ["claims-by-depth", "burst", "mixed-namespace", "hits-over-time", "load-hits"])
def test_it_can_be_drawn_in_colours_that_follow_into_the_dark(figures, name, wide) -> None:
    pytest.importorskip("vl_convert")
    from excise.report.figures.render import drawing

    svg = drawing(figures[name].draw(wide), name)
    ET.fromstring(svg)  # noqa: S314 - we drew it
    used = set(re.findall(r'(?:fill|stroke)="(#[0-9a-f]{6})"', svg))
    assert used <= set(LIGHT.values())
    assert len(used & {*HIT_TONES.values(), *(tone.colour for tone in MODE_TONES.values()), LIGHT["series-2"]}) >= 2
    width = re.search(r'width="([\d.]+)"', svg)
    assert width is not None
    assert float(width[1]) <= (760 if wide else 440)


def test_the_nine_cells_are_all_drawn(figures) -> None:
    pytest.importorskip("vl_convert")
    from excise.report.figures.render import drawing

    svg = drawing(figures["mixed-namespace"].draw(True), "m")
    assert len(re.findall(r"[\d.]+ x exact", svg)) == 9
    for word in ("Zipf 0", "Zipf 0.8", "Zipf 1.2", "places for 10 %", "places for 50 %", "no pool, steps kept"):
        assert f">{word}<" in svg


def test_too_few_blocks_are_no_figure_but_a_remedy() -> None:
    (part,) = by_depth(rows(made_pool_trials(warm_cells(), blocks=2)))
    assert isinstance(part, Absent)
    assert "--plan warm" in part.remedy


def test_a_run_of_something_else_has_no_such_figure(mixed) -> None:
    assert by_depth(rows(mixed)) == burst(rows(mixed)) == []
    assert by_depth(rows(made_pool_trials(burst_cells()))) == []
    warm = made_pool_trials(warm_cells())
    assert burst(rows(warm)) == mixture(rows(warm), warm) == of_trials(warm) == []
    assert over_time("x", [Found(at_s=0, hit="deps")]) == []


def test_shares_over_time_add_up_in_every_piece(figures) -> None:
    values = figures["hits-over-time"].draw(True)["data"]["values"]
    tops: dict[tuple, float] = {}
    for value in values:
        key = (value["row"], value["column"], value["begin"])
        assert value["from"] == pytest.approx(tops.get(key, 0.0))
        tops[key] = value["to"]
    assert len(tops) == 2 * 3 * 12
    assert list(tops.values()) == pytest.approx([1.0] * len(tops))


# ---- from a directory


def written(path, cells, name, host="0123456789ab", trials=None):
    header = made_pool_header(cells, name)
    header = msgspec.structs.replace(header, provenance=msgspec.structs.replace(ORIGIN, host=host))
    with Writer(path, header) as writer:
        for trial in made_pool_trials(cells) if trials is None else trials:
            writer.add(trial)
    return path


def test_a_report_of_several_plans(tmp_path) -> None:
    pytest.importorskip("vl_convert")
    from excise.report.bundle import write_pools

    paths = [
        written(tmp_path / "warm", warm_cells(), "warm"),
        written(tmp_path / "burst", burst_cells(), "burst"),
        written(tmp_path / "mixed", mixed_cells(), "mixed"),
    ]
    runs = read_pools(paths)
    assert runs is not None
    write_pools(tmp_path / "out", runs)
    page = (tmp_path / "out/index.html").read_text()
    made_files = {path.name for path in (tmp_path / "out/figures").iterdir()}
    assert made_files == {
        f"{name}.{kind}"
        for name in ("claims-by-depth", "burst", "mixed-namespace", "hits-over-time")
        for kind in ("svg", "png")
    }
    assert {"mixed-rows.csv", "warm-rows.md", "mixed-namespace.csv"} <= {
        one.name for one in (tmp_path / "out/tables").iterdir()
    }
    assert "excise measure --plan mixed" in page
    assert "<h1>Handing out the closest state takes " in re.sub(r"<h1[^>]*>", "<h1>", page)
    assert ">docker<" in (tmp_path / "out/figures/claims-by-depth.svg").read_text()  # which the plan warm alone has
    assert "core-seconds" in page


def test_the_table_is_markdown_with_every_cell(tmp_path) -> None:
    header, trials = load_pools(written(tmp_path / "burst", burst_cells(), "burst"))
    text = pools.table(header, trials)
    assert text.count("\n| namespace |") + text.count("\n| docker+guest |") == len(burst_cells())


def test_runs_that_do_not_belong_together_are_refused(tmp_path) -> None:
    first = written(tmp_path / "a", burst_cells(), "burst")
    with pytest.raises(SpecError, match="second run of burst"):
        read_pools([first, written(tmp_path / "b", burst_cells(), "burst")])
    with pytest.raises(SpecError, match="another host"):
        read_pools([first, written(tmp_path / "c", warm_cells(), "warm", host="ba9876543210")])
    with pytest.raises(SpecError, match="no measured block"):
        read_pools([written(tmp_path / "d", burst_cells(), "burst", trials=[])])
    with pytest.raises(SpecError, match="no run of pools"):
        read_pools([first, tmp_path])
    assert read_pools([tmp_path]) is None
    alike = read_pools([first, written(tmp_path / "e", burst_cells(), "another")])
    assert alike is not None
    with pytest.raises(SpecError, match="two of the runs tell of burst"):
        pool_story(alike)
