"""The share image: 1200 x 630, the sentence, and the receipts side by side. Drawn by the same engine as the figures."""

import textwrap
from html import escape

from excise.report.facts import Facts
from excise.report.figures.render import png
from excise.report.figures.theme import LIGHT
from excise.report.receipt import Receipt, receipt
from excise.report.sentence import sentence

WIDTH, HEIGHT = 1200, 630
_MARGIN = 56
_TILL = "Liberation Mono, DejaVu Sans Mono, Courier New, monospace"
_HEAD = "Liberation Sans, Arial, Helvetica, sans-serif"
_MOST = 3
_LETTER_PX = 0.602
"""How wide a letter of the till's font is, for each pixel of its size."""


def share_svg(facts: Facts) -> str:
    """Every word of it is escaped: an address is not markup."""
    shown = _chosen(facts)
    words, size = textwrap.wrap(sentence(facts), 58), 36
    if len(words) > 3:
        words, size = textwrap.wrap(sentence(facts), 80)[:4], 26
    step = size + 10
    head = "".join(_text(_MARGIN, 92 + step * n, line, size, weight="bold", family=_HEAD) for n, line in enumerate(words))
    top = 92 + step * len(words)
    gap = 28
    each = (WIDTH - 2 * _MARGIN - gap * (len(shown) - 1)) / max(1, len(shown))
    each = min(each, 520.0)
    cards = "".join(_card(one, _MARGIN + index * (each + gap), top, each) for index, one in enumerate(shown))
    origin = facts.run.header.provenance
    foot = f"excise · {origin.cores} cores of {origin.cpu} · {facts.run.blocks} blocks · {facts.run.header.started[:10]}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#f1f3f5"/>{head}{cards}'
        f"{_text(_MARGIN, HEIGHT - 26, foot, 19, colour=LIGHT['quiet'], family=_HEAD)}</svg>"
    )


def share_png(facts: Facts) -> bytes:
    return png(share_svg(facts), scale=1.0)


def _chosen(facts: Facts) -> list[Receipt]:
    """The two that the sentence is about, and the reference beside them: the dearest first."""
    isolated = sorted(facts.isolated, key=lambda row: -(row.total_s.value if row.total_s else 0.0))
    rows = [*isolated[:1], *isolated[1:][-1:], *(row for row in facts.main if row.reference and row not in isolated)]
    return [receipt(row) for row in rows if row.total_s is not None][:_MOST]


def _card(one: Receipt, left: float, top: float, width: float) -> str:
    """Lines like a till prints them: what to the left, how much to the right, and two rules."""
    size = 18
    letters = int((width - 40) / (size * _LETTER_PX))
    lines = [(_both("", one.title[:letters], letters, centre=True), "bold"), ("-" * letters, "normal")]
    for item in one.items:
        named = (
            f"{item.name} {item.detail}" if len(item.name) + len(item.detail) + len(item.price) + 3 <= letters else item.name
        )
        lines.append((_both(named, item.price, letters), "normal"))
    lines += [("=" * letters, "normal"), (_both("TOTAL", one.total, letters), "bold")]
    if one.rate:
        lines.append((_both(f"tax rate {one.rate} %", one.tax, letters), "bold"))
    bottom = top + 34 + 27 * len(lines)
    paper = (
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{bottom - top:.1f}" rx="6" fill="#ffffff" '
        'stroke="#d5dae0"/>'
    )
    rows = "".join(
        _text(left + 20, top + 36 + 27 * index, line, size, weight=weight) for index, (line, weight) in enumerate(lines)
    )
    return paper + rows


def _both(left: str, right: str, letters: int, *, centre: bool = False) -> str:
    if centre:
        return right.center(letters)
    return left[: max(0, letters - len(right) - 1)].ljust(letters - len(right)) + right


def _text(
    x: float, y: float, text: str, size: int, *, weight: str = "normal", colour: str = LIGHT["ink"], family: str = _TILL
) -> str:
    # No-break spaces, because a drawing folds ordinary ones.
    shown = escape(text).replace(" ", "\N{NO-BREAK SPACE}")
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-family="{family}" font-size="{size}" font-weight="{weight}" '
        f'fill="{colour}">{shown}</text>'
    )
