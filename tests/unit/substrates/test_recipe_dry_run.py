"""Recipes that cost money are rendered, read by their programs and not run."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from excise.errors import SpecError
from excise.substrates.command.dry_run import DryRun, dry_run
from excise.substrates.command.recipe import Recipe, load

ROOT = Path(__file__).parents[3]
CLOUDS = sorted((ROOT / "docs/recipes").glob("*.toml"))
TOOL = """\
name = "tool"
programs = ["{tool}"]
remedy = "none"
create = [["${{{tool}}}", "make", "--name", "${{id}}"]]
exec = ["${{{tool}}}", "enter", "${{id}}", "--", "@env", "@argv"]
close = [["${{{tool}}}", "{close}", "${{id}}"]]

[repeat.env]
argv = ["${{name}}=${{value}}"]

[parse]
{tool} = {parse}
"""
READER = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/calls"
case "$*" in *--only-read*) ;; *) touch "$(dirname "$0")/made"; exit 0;; esac
case "$1" in make|enter|unmake) exit 0;; *) echo "unknown verb $1"; exit 2;; esac
"""


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A real program, that makes something unless it is told only to read."""
    place = tmp_path / "bin"
    place.mkdir()
    (place / "maker").write_text(READER)
    (place / "maker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    return place


def recipe(tmp_path: Path, *, parse: str = '{ after = ["--only-read"] }', close: str = "unmake", tool: str = "maker") -> Recipe:
    path = tmp_path / "recipe.toml"
    path.write_text(TOOL.format(tool=tool, parse=parse, close=close))
    return load(path)


def tried(one: Recipe, image: str = "an-image") -> DryRun:
    return asyncio.run(dry_run(one, image))


def test_every_command_is_read_and_nothing_is_made(tmp_path: Path, tool: Path) -> None:
    found = tried(recipe(tmp_path))
    assert [(one.part, one.read) for one in found.commands] == [("create 1", True), ("exec", True), ("close 1", True)]
    assert not (tool / "made").exists()
    calls = (tool / "calls").read_text().splitlines()
    # What follows -- is the sandbox's own command.
    assert calls == [
        "make --name tool-dry-run --only-read",
        "enter tool-dry-run --only-read",
        "unmake tool-dry-run --only-read",
    ]
    assert found.commands[1].argv[-3:] == ("NAME=a value", "echo", "two words")


def test_a_command_that_its_program_cannot_read_is_wrong(tmp_path: Path, tool: Path) -> None:
    found = tried(recipe(tmp_path, close="delete"))
    assert found.wrong
    assert (found.commands[-1].read, found.commands[-1].by) == (False, "maker: unknown verb delete")


def test_what_it_must_print_is_looked_for(tmp_path: Path, tool: Path) -> None:
    assert tried(recipe(tmp_path, parse='{ after = ["--only-read"], expect = "all is well" }')).wrong


def test_a_parse_table_that_would_run_the_command_is_refused(tmp_path: Path, tool: Path) -> None:
    with pytest.raises(SpecError, match="would run the command"):
        tried(recipe(tmp_path, parse="{}"))
    assert not (tool / "made").exists()


def test_a_program_that_is_not_here_leaves_its_commands_rendered_only(tmp_path: Path) -> None:
    found = tried(recipe(tmp_path, tool="nosuchmaker"))
    assert found.missing == ("nosuchmaker",)
    assert {one.read for one in found.commands} == {None}
    assert not found.wrong


@pytest.mark.parametrize("path", CLOUDS, ids=lambda path: path.stem)
def test_the_clouds_recipes_are_read_by_the_programs_that_are_here(path: Path) -> None:
    one = load(path)
    found = tried(one, "an-image")
    assert not found.wrong, [command.by for command in found.commands]
    filled = [word for command in found.commands for word in command.argv]
    assert not [word for word in filled if re.search(r"\$\{\w+\}", word)]
    for program in one.parse:
        asked = [command for command in found.commands if command.read]
        assert asked or shutil.which(program) is None


@pytest.mark.parametrize("path", CLOUDS, ids=lambda path: path.stem)
def test_the_clouds_recipes_say_that_nobody_ran_them(path: Path) -> None:
    assert "billed" in load(path).untried
    assert "NOT RUN" in path.read_text().partition("\n")[0]
    assert load(path).capabilities.kernel == "own"
    assert f"recipes/{path.name}" in (ROOT / "docs/recipes.md").read_text()


def test_aws_itself_reads_every_command_of_its_recipe(must_work: Callable[[str, str], None]) -> None:
    if shutil.which("aws") is None or shutil.which("ssh") is None:
        must_work("awscli", "aws or ssh is not here: pip install awscli, apt-get install openssh-client")
    found = tried(load(ROOT / "docs/recipes/aws-ec2.toml"), "ami-00000000000000000")
    unread = [one.part for one in found.commands if not one.read]
    assert unread == ["version", "probe"]


def test_a_flag_that_aws_does_not_have_is_found(tmp_path: Path, must_work: Callable[[str, str], None]) -> None:
    if shutil.which("aws") is None:
        must_work("awscli", "aws is not here: pip install awscli")
    text = (ROOT / "docs/recipes/aws-ec2.toml").read_text()
    path = tmp_path / "wrong.toml"
    path.write_text(text.replace('"--client-token", "${id}"', '"--client-tokn", "${id}"'))
    (wrong,) = [one for one in tried(load(path), "ami-0").commands if one.read is False]
    assert wrong.part == "create 1"
    assert "--client-tokn" in wrong.by


def test_there_are_two_clouds() -> None:
    assert [path.stem for path in CLOUDS] == ["aws-ec2", "gcloud-compute"]


@pytest.mark.parametrize("path", CLOUDS, ids=lambda path: path.stem)
@pytest.mark.parametrize("words", [["two words", "a'b\"c", "$HOME", "*", "", "back\\slash", "line\nbreak"]])
def test_words_arrive_as_they_were_sent(path: Path, words: list[str], tmp_path: Path) -> None:
    """The script that ssh and gcloud are given a line by: here a shell of this machine is on the other side."""
    script = tmp_path / "exec.sh"
    script.write_text(load(path).files["exec.sh"])
    other = tmp_path / "other"
    # As ssh does it: one word, which a shell reads; gcloud has it as --command=.
    other.write_text('#!/bin/bash\nline=${1#--command=}\nexec bash -c "$line"\n')
    other.chmod(0o755)
    shown = [sys.executable, "-c", "import json, os, sys; print(json.dumps([os.getcwd(), os.environ['NAME'], *sys.argv[1:]]))"]
    seen = subprocess.run(
        ["bash", script, str(tmp_path), str(other), "--", "NAME=a b", *shown, *words],
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert json.loads(seen.stdout) == [str(tmp_path), "a b", *words]


def test_only_recipes_have_a_dry_run() -> None:
    excise = str(Path(sys.executable).parent / "excise")
    shown = subprocess.run([excise, "check", "--dry-run", "local"], capture_output=True, text=True, check=False, timeout=60)
    assert shown.returncode == 2
    assert "is no recipe, and has no dry run" in shown.stderr


@pytest.mark.parametrize("path", CLOUDS, ids=lambda path: path.stem)
def test_the_command_line_shows_it_and_says_that_it_was_not_run(path: Path) -> None:
    excise = str(Path(sys.executable).parent / "excise")
    shown = subprocess.run(
        [excise, "check", "--dry-run", f"command?file={path}", "--image", "an-image"],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert shown.returncode == 0, shown.stdout
    assert "nothing was made" in shown.stdout
    assert f"Not run: {load(path).untried}" in shown.stdout
