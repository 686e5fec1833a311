"""Where this machine gets a Debian release from: its own apt sources, which may be a mirror, reduced to that release.

Third parties' repositories are left out, so that the same recipe means the same packages wherever it is built.
"""

import re
from collections.abc import Iterator
from pathlib import Path

_ONE_LINE = re.compile(r"^deb\s+(?P<options>\[[^\]]*\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s+(?P<components>.+)$")
_FIELD = re.compile(r"^(?P<name>[A-Za-z-]+):[ \t]*(?P<value>.*(?:\n[ \t].*)*)", re.MULTILINE)


def sources(suite: str, etc: Path = Path("/etc/apt")) -> dict[str, str]:
    """Sources of `suite`, its updates and its security fixes: file name to content; none if this machine has other releases."""
    suites = (suite, f"{suite}-updates", f"{suite}-security")
    lines: list[str] = []
    stanzas: list[str] = []
    for path in (etc / "sources.list", *sorted((etc / "sources.list.d").glob("*"))):
        if path.suffix == ".list" and path.is_file():
            lines += _lines(path.read_text(errors="replace"), suites)
        elif path.suffix == ".sources" and path.is_file():
            stanzas += _stanzas(path.read_text(errors="replace"), suites)
    made = {"base.list": "\n".join(lines), "base.sources": "\n\n".join(stanzas)}
    return {name: f"{text}\n" for name, text in made.items() if text}


def _lines(text: str, suites: tuple[str, ...]) -> Iterator[str]:
    for line in text.splitlines():
        found = _ONE_LINE.match(line.split("#")[0].strip())
        if found and found["suite"] in suites and "main" in found["components"].split():
            yield f"deb {found['options'] or ''}{found['uri']} {found['suite']} main"


def _stanzas(text: str, suites: tuple[str, ...]) -> Iterator[str]:
    without_comments = re.sub(r"^#.*\n?", "", text, flags=re.MULTILINE)
    for stanza in re.split(r"\n\s*\n", without_comments):
        fields = {found["name"].lower(): found["value"].rstrip() for found in _FIELD.finditer(stanza)}
        wanted = [suite for suite in fields.get("suites", "").split() if suite in suites]
        enabled = fields.get("enabled", "yes").strip().lower() not in ("no", "false", "0", "off")
        if enabled and wanted and "deb" in fields.get("types", "").split() and "main" in fields.get("components", "").split():
            fields |= {"types": "deb", "suites": " ".join(wanted), "components": "main"}
            yield "\n".join(f"{name.title()}: {value}" for name, value in fields.items())
