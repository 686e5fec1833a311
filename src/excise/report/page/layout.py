"""From a story to one HTML file. All text goes through the template's escaping; only drawings and our own files do not."""

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import msgspec

from excise.report.figures.theme import DARK, LIGHT, style_sheet, variables
from excise.report.parts import Absent, Figure, Part

if TYPE_CHECKING:
    from excise.report.receipt import Receipt
    from excise.report.story import Help, Section

_ONLY_LIGHT = "--shade:#f0f2f4;--slip:#fcfcf8;"
_ONLY_DARK = "--shade:#1d232a;--slip:#181d23;"


@dataclass(frozen=True, kw_only=True)
class Content:
    """What a page says."""

    title: str
    sentence: str
    precision: str
    caution: str = ""
    """Why its numbers are no finding yet."""
    sections: "Sequence[Section]"
    receipts: "Sequence[Receipt]" = ()
    helps: "Sequence[Help] | None" = None
    scenario: str = ""
    calculator: dict[str, Any] | None = None
    share: bytes | None = None
    version: str
    run_id: str
    started: str
    drawings: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    """By figure: the wide and the narrow SVG."""


def html(content: Content) -> str:
    """The page. Nothing in it is loaded from elsewhere, and its own script is the only one that may run."""
    import jinja2  # noqa: PLC0415 - only the page needs it
    from markupsafe import Markup  # noqa: PLC0415

    own = files("excise.report.page")
    script = (own / "calculator.js").read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters["coded"] = _coded  # pyright: ignore[reportUnknownMemberType]
    template = environment.from_string((own / "page.html").read_text())

    def drawn(part: Part) -> dict[str, Any]:
        if isinstance(part, Absent):
            return {"title": part.title, "wide": "", "remedy": part.remedy}
        wide, narrow = content.drawings[part.name]
        return {**_words(part), "wide": Markup(wide), "narrow": Markup(narrow)}  # noqa: S704 - the engine escaped its texts

    sections = [
        {**vars(section), "parts": [drawn(part) for part in section.parts]}
        for section in content.sections
        if content.calculator is not None or not section.calculator
    ]
    page = {
        **{name: value for name, value in vars(content).items() if name != "drawings"},
        "sections": sections,
        "places": _places(content, sections),
        "style": Markup(_style() + (own / "page.css").read_text()),  # noqa: S704 - our own file
        "script": Markup(script),  # noqa: S704 - our own file
        "script_source": Markup(f"'sha256-{digest}'"),  # noqa: S704
        "calculator_json": Markup(_json(content.calculator)),  # noqa: S704 - see there
        "share": "" if content.share is None else f"data:image/png;base64,{base64.b64encode(content.share).decode()}",
    }
    return template.render(page=page) + "\n"


def _coded(text: str) -> str:
    """Text with what is between backquotes as code; all of it escaped first."""
    from markupsafe import Markup, escape  # noqa: PLC0415 - see above

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704


def _words(part: Figure) -> dict[str, Any]:
    return {"name": part.name, "title": part.title, "caption": part.caption, "alt": part.alt, "table": part.table}


def _places(content: Content, sections: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    first = [("receipt", "The receipt")] if content.receipts else []
    second = [("helps", "What would help")] if content.helps is not None else []
    return [*first, *second, *((section["place"], section["title"]) for section in sections)]


def _json(data: Any) -> str:
    """JSON that no text in it can end the element it stands in."""
    text = msgspec.json.encode(data).decode()
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _style() -> str:
    """Light, dark where the reader's system is, and light again in print."""
    light, dark = variables(LIGHT) + _ONLY_LIGHT, variables(DARK) + _ONLY_DARK
    return (
        f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"
        f"@media print{{html{{color-scheme:light}}}}{style_sheet('.picture svg ')}"
    )
