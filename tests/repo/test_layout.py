"""The repository's own habits, as far as a program can see them."""

import re
import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
MODULES = sorted((TOP / "src").rglob("*.py"))


def tracked() -> list[Path]:
    """Every file of the repository, or of a source archive of it."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=TOP, capture_output=True, check=False)
    if listed.returncode == 0:
        return [TOP / name for name in listed.stdout.decode().split("\0") if name and (TOP / name).is_file()]
    return [
        path for part in ("src", "tests", "examples", "docs", "design") for path in (TOP / part).rglob("*") if path.is_file()
    ]


# Spelled in pieces, so that this file does not hold what it looks for.
FOREIGN = {
    "a path of somebody's machine": r"(?<![\w.])/" + r"work/|/root/\." + r"pyenv",
    "a registry's host": r"\b(?:gh"
    + r"cr|qu"
    + r"ay|g"
    + r"cr|registry-1\.dock"
    + r"er)\.io|\bdocker\."
    + r"io/|\bpy"
    + r"pi\.org",
}


@pytest.mark.parametrize("what", FOREIGN)
def test_no_file_names(what: str) -> None:
    pattern = re.compile(FOREIGN[what])
    found = [
        f"{path.relative_to(TOP)}:{number}"
        for path in tracked()
        for number, line in enumerate(path.read_bytes().decode("utf-8", "replace").splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(TOP / "src")))
def test_a_module_stays_readable(module: Path) -> None:
    lines = module.read_text().splitlines()
    assert len(lines) < 400
    assert module.stem not in {"utils", "helpers", "base", "manager", "abstract", "types", "common", "misc"}
    assert not lines or lines[0].startswith(('"""', "#!")), "a module begins with what it is for"


def test_no_large_file_is_tracked() -> None:
    assert [str(path) for path in tracked() if path.stat().st_size > 2 << 20] == []
