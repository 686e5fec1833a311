"""From a specification to pictures, by one engine: SVG for the page and for files, PNG where only pixels go."""

import re
from importlib.util import find_spec
from typing import Any

from excise.errors import SpecError, SubstrateError
from excise.report.figures.engine import alt
from excise.report.figures.theme import DARK, LIGHT, configuration, style_sheet, variables

PNG_SCALE = 2.0
_NAMES = re.compile(r'(\bid="|url\(#|href="#)')


def require_engine() -> None:
    """A sentence, before any work, where the extra is not installed."""
    missing = [name for name in ("altair", "jinja2", "vl_convert") if find_spec(name) is None]
    if missing:
        raise SpecError(
            f"the page needs {' and '.join(missing)}: run pip install 'excise[report]', or print the table with --table"
        )


def drawing(spec: dict[str, Any], prefix: str) -> str:
    """The SVG in light colours. Names inside it begin with `prefix`: two drawings of one page must not share any."""
    import vl_convert  # noqa: PLC0415 - heavy, and only the page needs it  # pyright: ignore[reportMissingTypeStubs]

    version = grammar(alt.SCHEMA_VERSION, vl_convert.get_vegalite_versions())  # pyright: ignore[reportUnknownMemberType]
    whole = {**spec, "config": {**spec.get("config", {}), **configuration()}}
    try:
        svg: str = vl_convert.vegalite_to_svg(whole, vl_version=version)  # pyright: ignore[reportUnknownMemberType]
    except BaseException as error:
        if type(error).__name__ == "PanicException":  # which is no Exception, so nobody else makes a sentence of it
            raise SubstrateError(f"the figure engine could not draw: {error}") from None
        raise
    return _NAMES.sub(rf"\g<1>{prefix}-", svg)


def grammar(wanted: str, known: list[str]) -> str:
    """The engine's version of the grammar that altair writes (`v5.20.1`), or the nearest below: they are released apart."""

    def parts(version: str) -> tuple[int, int]:
        major, minor, *_ = version.removeprefix("v").split(".")
        return int(major), int(minor)

    below = [version for version in known if parts(version) <= parts(wanted)]
    return max(below or known, key=parts)


def png(svg: str, scale: float = PNG_SCALE) -> bytes:
    """The light drawing, on paper."""
    import vl_convert  # noqa: PLC0415 - see above  # pyright: ignore[reportMissingTypeStubs]

    return vl_convert.svg_to_png(_on_paper(svg), scale=scale)  # pyright: ignore[reportUnknownMemberType]


def standalone(svg: str) -> str:
    """The drawing as a file of its own: it brings its style, and follows whoever shows it into the dark."""
    rules = (
        f"svg{{{variables(LIGHT)}}}@media (prefers-color-scheme:dark){{svg{{{variables(DARK)}}}}}"
        f"@media print{{svg{{{variables(LIGHT)}}}}}{style_sheet()}"
    )
    head, mark, rest = _on_paper(svg).partition(">")
    return f"{head}{mark}<style>{rules}</style>{rest}"


def _on_paper(svg: str) -> str:
    head, mark, rest = svg.partition(">")
    return f'{head}{mark}<rect width="100%" height="100%" fill="{LIGHT["paper"]}"/>{rest}'
