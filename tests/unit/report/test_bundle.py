"""The directory that `excise report` writes, and what it refuses."""

import re
from itertools import pairwise

import msgspec
import pytest

from excise.cli.entry import main
from excise.errors import SpecError
from excise.meter.latency_records import LatencyCell, LatencyHeader, LatencyPlan, LatencyTrial
from excise.meter.records import Skipped
from excise.meter.results import Writer
from excise.report.bundle import write as write_report
from excise.report.sources import read
from made_results import ORIGIN, plain_cells, rich_cells, write

pytest.importorskip("vl_convert")
HOSTILE = "runc</script><script>document.title='taken'</script>"


def latencies(path, origin=ORIGIN):
    cells = (LatencyCell(address="namespace", operation="exec"), LatencyCell(address="docker", operation="exec"))
    plan = LatencyPlan(cells=cells, blocks=8)
    header = LatencyHeader(id="x", started="2026-01-01T00:00:00Z", plan=plan, privileged=False, provenance=origin)
    with Writer(path, header) as writer:
        for block in range(9):
            for position, cell in enumerate(cells):
                took = (700_000 + block, 710_000) if cell.address == "namespace" else (50_000_000 + block, 51_000_000)
                writer.add(
                    LatencyTrial(
                        run="x",
                        block=block,
                        position=position,
                        cell=cell,
                        warmup=not block,
                        took_ns=took,
                        floor_ns=(400_000, 410_000 + block),
                    )
                )
    return path


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    place = tmp_path_factory.mktemp("report")
    cells = (*rich_cells(), *plain_cells((f"docker?x={HOSTILE}",)))
    results = write(place / "r", cells, failing="bubblewrap", skipped=(Skipped("gvisor", HOSTILE),), reason=HOSTILE)
    write_report(place / "out", *read([results, latencies(place / "l")]))
    return place / "out"


def test_there_is_a_page_an_image_figures_and_tables(report):
    assert sorted(entry.name for entry in report.iterdir()) == ["figures", "index.html", "share.png", "tables"]
    figures = {path.stem for path in (report / "figures").iterdir()}
    assert {"decomposition", "ladder", "latency-ladder", "worker-hours"} <= figures
    assert {path.name for path in (report / "figures").iterdir()} == {f"{n}.{kind}" for n in figures for kind in ("svg", "png")}
    names = {path.stem for path in (report / "tables").iterdir()}
    assert {"rows", "table1", "table2", "break-even", "failures", "skipped", "provenance", "latencies", *figures} <= names


def test_the_page_loads_nothing(report):
    page = (report / "index.html").read_text()
    assert re.findall(r'(?:src|href|action)="(?!#|data:image/png;)[^"]*"', page) == []
    assert "@import" not in page
    assert re.findall(r"url\((?!#)", page) == []
    assert "default-src 'none'" in page


def test_text_of_results_is_never_markup(report):
    page = (report / "index.html").read_text()
    assert "<script>document.title" not in page
    assert "runc&lt;/script&gt;" in page
    assert page.count("<script") == 2
    data = page.partition('id="calculator-data">')[2].partition("</script>")[0]
    assert f"docker?x={HOSTILE} on t0" in [row["name"] for row in msgspec.json.decode(data)["rows"]]


def test_headings_go_down_one_level_at_a_time_and_every_picture_has_words(report):
    page = (report / "index.html").read_text()
    levels = [int(level) for level in re.findall(r"<h([1-6])[ >]", page)]
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert page.count('role="img"') == page.count('role="img" aria-label="')
    places = re.findall(r'<section id="([^"]+)"', page)
    assert all(f'href="#{place}"' in page for place in places)


def test_failures_and_skipped_rows_are_said(report):
    page = (report / "index.html").read_text()
    assert "Trials that failed" in page
    assert "gvisor" in page


def test_an_earlier_report_is_replaced_and_anything_else_is_kept(tmp_path):
    results = write(tmp_path / "r", plain_cells(("chroot", "docker")))
    out = tmp_path / "out"
    write_report(out, *read([results]))
    (out / "figures" / "old.svg").write_text("old")
    write_report(out, *read([results]))
    assert not (out / "figures" / "old.svg").exists()
    (out / "thesis.txt").write_text("mine")
    with pytest.raises(SpecError, match="holds something else than a report"):
        write_report(out, *read([results]))
    assert (out / "thesis.txt").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "r"]


def refused(capsys, *arguments):
    code = main(["report", *map(str, arguments)])
    said = capsys.readouterr()
    assert code == 2, said.err
    assert said.err.count("\n") == 1
    return said.err


def test_results_that_cannot_be_reported_are_one_sentence_and_exit_2(tmp_path, capsys):
    good = write(tmp_path / "good", plain_cells(("chroot", "docker")))
    assert "is not a results directory" in refused(capsys, tmp_path / "nowhere")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "run.json").write_text('{"hello": 1}')
    assert "is not a run's header" in refused(capsys, foreign)
    half = write(tmp_path / "half", plain_cells(("chroot", "docker")), blocks=0)
    assert "no whole measured block" in refused(capsys, half)
    other = msgspec.structs.replace(ORIGIN, host="ba9876543210")
    assert "of two hosts" in refused(capsys, good, latencies(tmp_path / "l", other))
    assert "never pooled" in refused(capsys, good, half)
    assert "name a results directory" in refused(capsys)
    assert not (good / "report").exists()


def test_a_pooled_file_of_two_runs_is_refused(tmp_path, capsys):
    good = write(tmp_path / "good", plain_cells(("chroot", "docker")))
    line = (good / "trials.jsonl").read_text().splitlines()[0].replace("20260101T000000Z-abcdef", "20260102T000000Z-abcdef")
    with (good / "trials.jsonl").open("a") as file:
        file.write(line + "\n")
    assert "runs are never pooled" in refused(capsys, good)


def test_a_cut_last_line_is_left_out(tmp_path, capsys):
    good = write(tmp_path / "good", plain_cells(("chroot", "docker")))
    with (good / "trials.jsonl").open("a") as file:
        file.write('{"run": "2026')
    assert main(["report", str(good), "-o", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.splitlines()[1] == str(tmp_path / "out" / "index.html")


def test_tables_are_printed_without_a_page(tmp_path, capsys):
    good = write(tmp_path / "good", plain_cells(("chroot", "docker")))
    assert main(["report", str(good), "--table"]) == 0
    assert capsys.readouterr().out.startswith("substrate")
    assert main(["report", str(good), str(latencies(tmp_path / "l")), "--markdown"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("| substrate |")
    assert "| operation | substrate |" in out
    assert not (good / "report").exists()


def test_operations_alone_make_a_page_of_their_own(tmp_path):
    told = write_report(tmp_path / "out", *read([latencies(tmp_path / "l")]))
    assert told.startswith("One action on docker takes 50.5 ms, ")
    page = (tmp_path / "out" / "index.html").read_text()
    assert "the floor" in page
    assert "calculator" not in page.partition("<body>")[2]
    assert not (tmp_path / "out" / "share.png").exists()
