"""A report as a directory: index.html, share.png, figures as SVG and PNG, tables as Markdown and CSV."""

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from excise.errors import SpecError
from excise.loading.records import Loaded
from excise.meter.latency_records import LatencyHeader, LatencyTrial
from excise.report.calculator import calculator
from excise.report.facts import Facts
from excise.report.figures.render import drawing, png, require_engine, standalone
from excise.report.latency import latency_sentence
from excise.report.page.layout import Content, html
from excise.report.parts import Figure, Table
from excise.report.pool_story import Pools, load_sentence, load_story, pool_story, pools_sentence
from excise.report.receipt import receipts
from excise.report.sentence import caution, precision, sentence
from excise.report.share import share_png
from excise.report.story import Section, helps, latency_story, scenario_words, story
from excise.stats.latency import rows as latency_rows
from excise.stats.run import Run

INDEX, SHARE = "index.html", "share.png"
_OURS = frozenset({INDEX, SHARE, "figures", "tables"})


@dataclass(frozen=True, kw_only=True)
class Latencies:
    """A run of single operations."""

    header: LatencyHeader
    trials: tuple[LatencyTrial, ...]


def write(out: Path, run: Run | None, latencies: Latencies | None) -> str:
    """Write the report to `out`, whole or not at all, in place of an earlier one; returns its sentence."""
    require_engine()
    refuse_others(out)
    facts = None if run is None else Facts(run)
    sections = [] if facts is None else story(facts)
    if latencies is not None:
        at = next((n for n, section in enumerate(sections) if section.place == "break-even"), 0)
        sections[at:at] = latency_story(latencies.header, latencies.trials, alone=facts is None)
    drawings = _drawings(sections)
    share = share_png(facts) if facts is not None and facts.main else None
    return _published(out, _content(facts, latencies, sections, share, drawings))


def write_pools(out: Path, runs: Sequence[Pools]) -> str:
    """The same of runs of pools, one after the other."""
    require_engine()
    refuse_others(out)
    sections = pool_story(runs)
    content = Content(
        title="Claims: excise report",
        sentence=pools_sentence(runs),
        precision="mean time of a claim, from when it was to be made to the start state",
        sections=sections,
        version=version("excise"),
        run_id=", ".join(run.header.id for run in runs),
        started=runs[0].header.started,
        drawings=_drawings(sections),
    )
    return _published(out, content)


def write_load(out: Path, load: Loaded) -> str:
    """The same of one load that `excise pool` ran."""
    require_engine()
    refuse_others(out)
    sections = load_story(load)
    content = Content(
        title=f"{load.address} under {load.load}: excise report",
        sentence=load_sentence(load),
        precision=f"{len(load.claims)} claims, from when each was to be made to a sandbox that is ready",
        sections=sections,
        version=version("excise"),
        run_id=f"seed {load.seed}",
        started=f"for {load.took_s:.0f} s",
        drawings=_drawings(sections),
    )
    return _published(out, content)


def _drawings(sections: Sequence[Section]) -> dict[str, tuple[str, str]]:
    return {
        part.name: (drawing(part.draw(True), f"{part.name}-w"), drawing(part.draw(False), f"{part.name}-n"))
        for section in sections
        for part in section.parts
        if isinstance(part, Figure)
    }


def _published(out: Path, content: Content) -> str:
    try:
        _replace(out, html(content), content.share, content.drawings, _tables(content.sections))
    except OSError as error:
        raise SpecError(f"the report cannot be written to {out}: {error.strerror}; name another directory with -o") from error
    return content.sentence


def refuse_others(out: Path) -> None:
    """A SpecError if `out` holds something that no report of ours did: it would be lost."""
    if out.exists() and (not out.is_dir() or any(entry.name not in _OURS for entry in out.iterdir())):
        raise SpecError(f"{out} holds something else than a report: name another directory with -o")


def _content(
    facts: Facts | None,
    latencies: Latencies | None,
    sections: Sequence[Section],
    share: bytes | None,
    drawings: dict[str, tuple[str, str]],
) -> Content:
    if facts is not None:
        header = facts.run.header
        return Content(
            title=f"The tax of {', '.join(dict.fromkeys(row.address for row in facts.rows))}: excise report",
            sentence=sentence(facts),
            precision=precision(facts),
            caution=caution(facts),
            sections=sections,
            receipts=receipts(facts),
            helps=helps(facts),
            scenario=scenario_words(),
            calculator=calculator(facts),
            share=share,
            version=version("excise"),
            run_id=header.id,
            started=header.started,
            drawings=drawings,
        )
    assert latencies is not None
    found = latency_rows(latencies.trials)
    return Content(
        title="Single operations: excise report",
        sentence=latency_sentence(found),
        precision="p50 of one command in a live sandbox, from asking to its answer",
        sections=sections,
        version=version("excise"),
        run_id=latencies.header.id,
        started=latencies.header.started,
        drawings=drawings,
    )


def _tables(sections: Sequence[Section]) -> list[Table]:
    of_figures = [part.table for section in sections for part in section.parts if isinstance(part, Figure)]
    return [*of_figures, *(one for section in sections for one in (*section.tables_first, *section.tables, *section.folded))]


def _replace(out: Path, page: str, share: bytes | None, drawings: dict[str, tuple[str, str]], found: Sequence[Table]) -> None:
    """All of it beside its place first: a report that is cut off leaves the earlier one as it was."""
    out.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        part.chmod(0o777 & ~_umask())
        (part / INDEX).write_text(page, encoding="utf-8")
        if share is not None:
            (part / SHARE).write_bytes(share)
        (part / "figures").mkdir()
        for name, (wide, _) in drawings.items():
            (part / "figures" / f"{name}.svg").write_text(standalone(wide), encoding="utf-8")
            (part / "figures" / f"{name}.png").write_bytes(png(wide))
        (part / "tables").mkdir()
        for table in found:
            (part / "tables" / f"{table.name}.md").write_text(table.markdown(), encoding="utf-8")
            (part / "tables" / f"{table.name}.csv").write_text(table.csv(), encoding="utf-8")
        if out.exists():
            shutil.rmtree(out)
        part.rename(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _umask() -> int:
    """Reading it means setting it; a directory that mkdtemp made is for its owner alone, and a report is there to be read."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
