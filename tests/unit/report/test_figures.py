"""Every figure, drawn in both widths; what a reader in the dark sees; what text in results cannot do."""

import math
import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from excise.meter.records import Cell
from excise.report.facts import Facts
from excise.report.figures.marks import LONGEST_NAME, Span, dots, finished, shortened, spread
from excise.report.figures.render import drawing, grammar, png, standalone
from excise.report.figures.theme import DARK, LIGHT
from excise.report.parts import Figure
from excise.report.share import share_png, share_svg
from excise.report.story import story
from excise.stats.run import Run
from made_results import RESET_MS, plain_cells, rich_cells, write

pytest.importorskip("vl_convert")
HOSTILE = 'docker?x=</svg><script>alert("1")</script>'


def parsed(svg):
    return ET.fromstring(svg)  # noqa: S314 - we drew it


def figures(path):
    facts = Facts(Run.read(path))
    return facts, {part.name: part for section in story(facts) for part in section.parts if isinstance(part, Figure)}


@pytest.fixture(scope="module")
def rich(tmp_path_factory):
    return figures(write(tmp_path_factory.mktemp("rich") / "r", rich_cells()))


@pytest.fixture(scope="module")
def drawings(rich):
    return {(name, wide): drawing(part.draw(wide), f"{name}{wide}") for name, part in rich[1].items() for wide in (True, False)}


def test_there_is_every_figure(rich):
    assert set(rich[1]) == {
        "decomposition",
        "ladder",
        "length",
        "cold-starts",
        "cold-start-distribution",
        "composition",
        "completion",
        "worker-hours",
        "by-concurrency",
        "by-arrivals",
        "by-reset",
        "by-shell",
        "by-state",
    }


def test_a_factor_has_a_figure_only_if_the_run_has_two_of_its_levels(tmp_path, rich):
    assert not [name for name in figures(write(tmp_path / "plain", plain_cells()))[1] if name.startswith("by-")]
    alone = (*plain_cells(workloads=("t0",)), Cell(address="docker", workload="t2", shell="login"))
    assert "by-shell" not in figures(write(tmp_path / "alone", alone))[1]
    rows = {row[2]: row for row in rich[1]["by-reset"].table.rows}
    assert set(rows) == {"recreate", "git"}
    assert float(rows["git"][3]) == pytest.approx(RESET_MS, rel=0.2)
    assert float(rows["recreate"][3]) == pytest.approx(292, rel=0.2)
    assert rows["recreate"][5] == "-"
    assert float(rows["git"][5]) < 1


def test_a_factors_caption_says_when_there_are_no_intervals(tmp_path, rich):
    assert "bands are 95 % intervals" in rich[1]["by-concurrency"].caption
    few = figures(write(tmp_path / "few", rich_cells(), blocks=1))[1]
    for name in ("by-concurrency", "by-shell"):
        assert "no intervals" in few[name].caption
        assert "95 % intervals" not in few[name].caption


def test_each_is_well_formed_and_fits_its_page(drawings):
    for (name, wide), svg in drawings.items():
        width = float(parsed(svg).get("width", "0"))
        assert 200 < width < (760 if wide else 345), name


def test_every_colour_has_one_for_the_dark(drawings):
    known = set(LIGHT.values())
    assert LIGHT.keys() == DARK.keys()
    assert len(known) == len(LIGHT), "two roles of one colour cannot be told apart by it"
    for name, svg in drawings.items():
        used = set(re.findall(r'(?:fill|stroke)="([^"]+)"', svg)) - {"none", "transparent"}
        assert used <= known, name


def test_two_drawings_of_a_page_share_no_name():
    mark = {"type": "line", "clip": True}
    encoding = {"x": {"field": "x", "type": "quantitative"}, "y": {"field": "x", "type": "quantitative"}}
    spec = {"data": {"values": [{"x": 1}, {"x": 2}]}, "mark": mark, "encoding": encoding}
    svg = drawing(spec, "ladder-w")
    names = re.findall(r'\bid="([^"]+)"', svg)
    assert names
    assert all(name.startswith("ladder-w-") for name in names)
    assert set(re.findall(r"url\(#([^)]+)\)", svg)) == set(names)


def test_a_caption_has_n_and_a_unit_is_on_the_axis(rich, drawings):
    assert all(re.search(r"n = \d|interval|measured", part.caption) for part in rich[1].values())
    assert " ms<" in drawings["ladder", True]
    assert " h<" in drawings["worker-hours", True]


def test_a_file_of_its_own_follows_into_the_dark(drawings):
    svg = standalone(drawings["ladder", True])
    parsed(svg)
    assert "prefers-color-scheme:dark" in svg
    assert f"--ink:{DARK['ink']}" in svg


def test_the_same_engine_makes_pixels(drawings):
    data = png(drawings["ladder", False], scale=1.0)
    assert data.startswith(b"\x89PNG\r\n\x1a\n")


def test_the_share_image_is_1200_by_630(rich):
    data = share_png(rich[0])
    assert (int.from_bytes(data[16:20]), int.from_bytes(data[20:24])) == (1200, 630)


def test_an_address_is_never_markup(tmp_path):
    facts, found = figures(write(tmp_path / "r", plain_cells(("chroot", "docker", HOSTILE))))
    for part in found.values():
        svg = drawing(part.draw(True), "x")
        parsed(svg)
        assert "<script" not in svg
    assert "<script" not in share_svg(facts)
    assert parsed(share_svg(facts)).get("width") == "1200"


def test_a_dot_without_an_interval_has_no_ends():
    known = {"name": "a", "value": 1.0, "label": "1 s", "colour": LIGHT["ink"], "shape": "circle"}
    ends = []
    for value in (known, {**known, "low": 0.5, "high": 2.0}):
        chart = dots([value], Span([0.5, 2.0]), "x", wide=True, px=300)
        ends.append(drawing(finished(chart), "x").count("h2v11h-2Z"))  # a tick, two wide and eleven high
    assert ends == [0, 2]


def test_names_at_the_ends_of_lines_stay_apart_and_inside():
    placed = spread({"a": 1.0, "b": 1.01, "c": 1.02, "d": 90.0, "e": 99.0}, 0.5, 100.0, 280.0)
    pixels = sorted(math.log(value / 0.5) / math.log(200) * 280 for value in placed.values())
    assert all(after - before >= 14.9 for before, after in pairwise(pixels))
    assert pixels[-1] <= 280.01


def test_an_axis_leaves_room_for_the_labels_and_has_ticks():
    span = Span([0.002, 0.05], label_px=100, width_px=300)
    assert span.low < 0.002
    assert span.high > 0.05 * 1.25
    assert len(span.ticks) >= 2
    assert all(span.low <= tick <= span.high for tick in span.ticks)


def test_the_engine_takes_the_nearest_grammar_that_it_knows():
    known = ["5.8", "5.20", "6.1", "6.4"]
    assert [grammar(wanted, known) for wanted in ("v5.20.1", "v6.4.1", "v6.9.0", "v5.1.0")] == ["5.20", "6.4", "6.4", "6.4"]


def test_addresses_that_differ_in_an_option_stay_apart_beside_an_axis() -> None:
    """Rows are told apart by their names: two of one name would be drawn over each other."""
    addresses = [f"hosted:namespace?hosted.rtt_ms={rtt}&hosted.packets=1" for rtt in (1, 10, 50)]
    names = [shortened(address) for address in addresses]
    assert len(set(names)) == 3
    assert all(len(name) <= LONGEST_NAME for name in names)
    assert shortened("pool:fake?pool.a=0.5") == "pool:fake?a=0.5"
