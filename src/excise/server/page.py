"""The page at `/`: one file, nothing loaded from elsewhere. It asks for the key, and shows what the key may see."""

from functools import cache
from pathlib import Path


@cache
def page() -> str:
    return (Path(__file__).parent / "page.html").read_text()
