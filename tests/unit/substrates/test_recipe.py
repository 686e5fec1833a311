"""Recipes: what the TOML may say, and how its placeholders are filled."""

import json
import re
from pathlib import Path

import pytest

from excise.errors import SpecError
from excise.substrates.command.recipe import Filling, Recipe, Repeat, load

ROOT = Path(__file__).parents[3]
MINIMAL = 'name = "t"\nprograms = []\nremedy = "none"\nexec = ["@argv"]\n'


def recipe(tmp_path: Path, text: str) -> Recipe:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    return load(path)


def test_the_documented_example_is_a_recipe(tmp_path: Path) -> None:
    text = (ROOT / "docs/recipes.md").read_text()
    found = re.search(r"```toml\n(.*?)```", text, re.DOTALL)
    assert found is not None
    podman = recipe(tmp_path, found[1])
    one = {"podman": "/usr/bin/podman", "id": "box", "cwd": "/work", "state": "/s", "workdir": "/work", "image": "debian"}
    many = {"env": [{"name": "A", "value": "b c"}], "binds": [], "user": [{"user": "ada", "uid": "ada", "gid": "ada"}]}
    filled = Filling(podman, one, many)
    assert filled.argv(podman.exec, ["true", ""]) == [
        *(
            "/usr/bin/podman",
            "exec",
            "--interactive",
            "--workdir",
            "/work",
            "--user",
            "ada",
            "--env",
            "A=b c",
            "box",
            "true",
            "",
        )
    ]
    assert filled.argv(podman.create[0])[-3:] == ["debian", "sleep", "infinity"]
    assert filled.argv(podman.close[0])[-1] == "box"


def test_every_field_is_documented() -> None:
    text = (ROOT / "docs/recipes.md").read_text()
    named = set(re.findall(r"`\.?([a-z_.]+)`", text.partition("## An engine")[0]))
    fields = {"repeat.env" if field == "repeat" else field for field in Recipe.__struct_fields__}
    assert fields <= named


@pytest.mark.parametrize(
    "broken", ["nonsense", MINIMAL + "colour = 1\n", 'name = "t"\n', MINIMAL + "[capabilities]\nflies = true\n"]
)
def test_a_file_that_is_no_recipe_is_one_sentence_with_its_name(tmp_path: Path, broken: str) -> None:
    with pytest.raises(SpecError, match=r"recipe\.toml is not a command substrate's TOML") as caught:
        recipe(tmp_path, broken)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be read: No such file"):
        load(tmp_path / "none.toml")


def test_an_unknown_placeholder_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"\$\{colour\} is not a placeholder; there are: id"):
        Filling(recipe(tmp_path, MINIMAL), {"id": "x"}, {}).argv(("${colour}",))


def test_a_list_without_a_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="@env needs a"):
        Filling(recipe(tmp_path, MINIMAL), {}, {"env": []}).argv(("@env",))


def test_values_in_json_files_are_escaped_and_repeated_ones_are_joined() -> None:
    made = Recipe(
        name="t",
        programs=(),
        remedy="none",
        exec=("@argv",),
        files={"a.json": '{"root": "${root}", "mounts": [${binds} null]}', "b.txt": "${root}"},
        repeat={"binds": Repeat(text='"${source}",')},
    )
    filled = Filling(made, {"root": 'a"b\\c\n'}, {"binds": [{"source": 'x"y'}, {"source": "z"}]})
    assert json.loads(filled.file("a.json")) == {"root": 'a"b\\c\n', "mounts": ['x"y', "z", None]}
    assert filled.file("b.txt") == 'a"b\\c\n'


def test_a_value_that_looks_like_a_placeholder_stays_itself() -> None:
    made = Recipe(name="t", programs=(), remedy="none", exec=("${cwd}", "@argv"))
    assert Filling(made, {"cwd": "${id}", "id": "secret"}, {}).argv(made.exec, ["${id}", "@env"]) == ["${id}", "${id}", "@env"]
