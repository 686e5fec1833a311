"""What the documents say of the repository is so."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import excise
from excise.cli.entry import application
from excise.contract.suite import CASES

TOP = Path(__file__).parents[2]
DOCUMENTS = sorted(path.name for path in TOP.glob("*.md"))


def text(name: str) -> str:
    return (TOP / name).read_text()


def test_every_agreed_document_is_there() -> None:
    agreed = {"ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md", "SPECIFICATION.md"}
    assert agreed <= set(DOCUMENTS)
    assert "Apache License" in text("LICENSE")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_to_files_that_exist(document: str) -> None:
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", text(document))
    missing = [target for target in targets if not target.startswith("https://") and not (TOP / target).exists()]
    assert missing == []


def promises() -> list[tuple[str, str, str]]:
    rows = [line.strip("| \n").split(" | ") for line in text("SPECIFICATION.md").splitlines()]
    return [(row[0], row[1], row[-1]) for row in rows if len(row) == 3 and row[0].isdigit()]


def test_promises_are_numbered_from_one_without_gaps() -> None:
    numbers = [int(number) for number, _, _ in promises()]
    assert len(numbers) > 20
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize(("number", "promise", "held_by"), promises())
def test_a_promise_is_held_by_something_that_exists_or_pending_with_a_reason(number: str, promise: str, held_by: str) -> None:
    if held_by.startswith("pending"):
        assert re.fullmatch(r"pending: \w.{10,}", held_by), f"promise {number} is pending without a reason"
        return
    links = re.findall(r"\[([^\]]+)\]\(([^)]+)\)", held_by)
    assert links, f"promise {number} ({promise}) names nothing that holds it"
    for label, target in links:
        place = TOP / target
        assert place.exists(), f"promise {number} is held by {target}, which does not exist"
        if label.startswith("test_"):
            assert label in defined(place), f"{target} has no {label}"
        if "/contract/" in target:
            assert label.replace("-", "_") in defined(place), f"{target} has no case {label}"


def test_every_case_of_the_contract_holds_a_promise() -> None:
    labels = {label for _, _, held_by in promises() for label, _ in re.findall(r"\[([^\]]+)\]\(([^)]+)\)", held_by)}
    assert {case.name for case in CASES} - labels == set()


def defined(place: Path) -> set[str]:
    return {
        node.name for node in ast.walk(ast.parse(place.read_text())) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_a_number_in_a_promise_has_a_measurement() -> None:
    """A promise of speed is held by a file of results, or a test; never by prose."""
    speeds = [row for row in promises() if re.search(r"\d+ (ms|microseconds|%)", row[1])]
    assert speeds
    for number, _, held_by in speeds:
        assert "docs/results/" in held_by or held_by.startswith("pending"), f"promise {number} has no results file"


def test_the_version_is_the_same_everywhere() -> None:
    version = tomllib.loads(text("pyproject.toml"))["project"]["version"]
    assert f"\nversion: {version}\n" in text("CITATION.cff")
    assert re.search(r"^## (\S+)", text("CHANGELOG.md"), re.MULTILINE)[1] == version  # pyright: ignore[reportOptionalSubscript]


def test_make_targets_that_documents_name_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", text("Makefile"), re.MULTILINE))
    named = {target for document in DOCUMENTS for target in re.findall(r"(?m)(?:^ {4}|`)make ([a-z-]+)", text(document))}
    assert {"measure", "test"} <= named
    assert named <= targets


def test_commands_that_documents_name_exist() -> None:
    commands = {name for name in application() if not name.startswith("-")}
    named = {name for document in DOCUMENTS for name in re.findall(r"(?m)(?:^ {4}|`)excise ([a-z]+)", text(document))}
    assert named == commands


def test_the_readme_quotes_the_example() -> None:
    example = text("examples/rollout.py").partition("# README begins\n")[2].partition("\n\n# README ends")[0]
    quoted = text("README.md").partition("<!-- quote:begin examples/rollout.py -->\n")[2].partition("<!-- quote:end -->")[0]
    assert quoted.strip() == f"```python\n{example.strip()}\n```"


def test_the_readmes_table_is_that_of_the_committed_results() -> None:
    checked = subprocess.run([sys.executable, "bench/readme_table.py", "--check"], cwd=TOP, check=False, timeout=60)
    assert checked.returncode == 0, "run python bench/readme_table.py"


def test_every_public_name_is_documented() -> None:
    architecture = text("ARCHITECTURE.md")
    undocumented = [name for name in excise.__all__ if not getattr(excise, name).__doc__ or f"`{name}`" not in architecture]
    assert undocumented == []


def test_every_room_is_described() -> None:
    rooms = [path for path in (TOP / "src/excise").iterdir() if path.name != "__pycache__" and not path.name.startswith("__")]
    names = [f"{path.name}/" if path.is_dir() else path.name for path in rooms if path.is_dir() or path.suffix == ".py"]
    described = text("ARCHITECTURE.md").partition("## The rooms")[2].partition("\n## ")[0]
    assert sorted(name for name in names if name not in described) == []
