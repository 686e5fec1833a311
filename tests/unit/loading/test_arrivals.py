"""Arrivals are fixed in advance by the seed, and a file's words are taken exactly or refused."""

import json
from collections import Counter
from pathlib import Path

import pytest

from excise.action import Shell
from excise.errors import SpecError
from excise.loading.arrivals import Arrival, burst, poisson
from excise.loading.replay import replay
from excise.loading.specs import Wanted, as_spec, mix, read_many, read_one
from excise.spec import Secret, Spec, Stage

ONE = (Wanted(name="a", spec=Spec()),)


def times(arrivals: tuple[Arrival, ...]) -> list[float]:
    return [one.at_s for one in arrivals]


# ---- when


def test_the_seed_fixes_every_arrival() -> None:
    first = poisson(20, 30, mix(6, 0.8), hold_s=1, seed=1)
    assert first == poisson(20, 30, mix(6, 0.8), hold_s=1, seed=1)
    assert times(first) != times(poisson(20, 30, mix(6, 0.8), hold_s=1, seed=2))
    assert all(0 < at_s < 30 for at_s in times(first))
    assert times(first) == sorted(times(first))


def test_the_seed_fixes_what_each_asks_for() -> None:
    asked = [[one.name for one in burst(40, None, 1, mix(6, 0), hold_s=0, seed=seed)] for seed in (1, 1, 2)]
    assert asked[0] == asked[1]
    assert asked[0] != asked[2]


def test_another_mix_meets_the_same_arrivals() -> None:
    assert times(poisson(20, 30, mix(6, 0.8), hold_s=1, seed=1)) == times(poisson(20, 30, ONE, hold_s=1, seed=1))


def test_a_rate_is_a_rate() -> None:
    found = poisson(50, 100, ONE, hold_s=0, seed=3)
    assert abs(len(found) - 5000) < 5 * 5000**0.5
    waits = [after - before for before, after in zip(times(found), times(found)[1:], strict=False)]
    above = sum(wait > 1 / 50 for wait in waits) / len(waits)
    assert abs(above - 0.368) < 0.03  # exponential: e ** -1 of them are above the mean


def test_a_burst_comes_at_once_and_again() -> None:
    assert times(burst(3, None, 60, ONE, hold_s=0, seed=1)) == [0, 0, 0]
    assert times(burst(2, 20, 60, ONE, hold_s=0, seed=1)) == [0, 0, 20, 20, 40, 40]


def test_weights_are_heeded() -> None:
    wanted = (Wanted(name="a", spec=Spec(), weight=3), Wanted(name="b", spec=Spec(), weight=1))
    found = Counter(one.name for one in burst(4000, None, 1, wanted, hold_s=0, seed=1))
    assert abs(found["a"] - 3000) < 150


@pytest.mark.parametrize("rate", [0, -1, float("inf"), float("nan"), 1e9])
def test_a_rate_of_nothing_or_of_everything_is_refused(rate: float) -> None:
    with pytest.raises(SpecError, match="poisson:"):
        poisson(rate, 60, ONE, hold_s=1, seed=1)


@pytest.mark.parametrize(("count", "every_s"), [(0, None), (-3, None), (10**7, None), (4, 0.0), (4, 1e-9)])
def test_a_burst_of_nobody_or_of_everybody_is_refused(count: int, every_s: float | None) -> None:
    with pytest.raises(SpecError, match="burst:"):
        burst(count, every_s, 60, ONE, hold_s=1, seed=1)


# ---- what


def test_the_mix_has_sibling_commits_of_every_other_repository() -> None:
    wanted = mix(9, 1.2)
    assert [one.name for one in wanted] == ["r0@a", "r1@a", "r1@b", "r2@a", "r3@a", "r3@b", "r4@a", "r5@a", "r5@b"]
    assert wanted[1].weight == pytest.approx(2**-1.2)
    clone, install = wanted[1].spec.steps
    sibling_clone, sibling_install = wanted[2].spec.steps
    assert clone != sibling_clone
    assert clone.of == sibling_clone.of
    assert install == sibling_install
    assert install.lock


@pytest.mark.parametrize(("count", "zipf"), [(0, 1), (3, -1), (3, float("nan"))])
def test_a_mix_of_nothing_is_refused(count: int, zipf: float) -> None:
    with pytest.raises(SpecError):
        mix(count, zipf)


def test_specs_of_a_toml_file(tmp_path: Path) -> None:
    file = tmp_path / "specs.toml"
    file.write_text(
        '[[specs]]\nname = "web"\nweight = 2\nowner = "ann"\n[specs.spec]\nimage = "host"\nworkdir = "/srv"\n'
        '[[specs]]\nname = "lib"\n[specs.spec]\nlimits = {pids = 64}\n'
        '[[specs.spec.steps]]\nname = "s"\nstage = "repo"\nactions = [{action = "shell", script = "true"}]\n'
    )
    web, lib = read_many(file)
    assert (web.name, web.weight, web.owner, web.spec.workdir) == ("web", 2, "ann", "/srv")
    assert lib.spec.limits.pids == 64
    assert lib.spec.steps[0].actions == (Shell("true"),)
    assert lib.spec.steps[0].stage is Stage.REPO


def test_specs_as_lines_of_json(tmp_path: Path) -> None:
    file = tmp_path / "specs.jsonl"
    file.write_text('{"name": "a", "spec": {"env": {"A": "1"}}}\n\n{"name": "b", "spec": {}}\n')
    assert [one.spec.env for one in read_many(file)] == [{"A": "1"}, {}]


def test_one_spec_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "task.json").write_text('{"workdir": "/srv"}')
    (tmp_path / "task.toml").write_text('workdir = "/srv"')
    assert read_one(tmp_path / "task.json") == read_one(tmp_path / "task.toml")
    assert read_one(tmp_path / "task.json")[0].name == "task"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "has no spec"),
        ("nonsense", "line 1 is not JSON"),
        ("[]", "is not a table"),
        ('{"spec": {}}', "name"),
        ('{"name": "a", "spec": {"imgae": "host"}}', "Spec has no 'imgae'"),
        ('{"name": "a", "spec": {"limits": {"cpu": 1}}}', "Limits has no 'cpu'"),
        ('{"name": "a", "spec": {"steps": [{"name": "s", "actions": [], "stag": "x"}]}}', "Step has no 'stag'"),
        ('{"name": "a", "spec": {"image": 3}}', "image"),
        ('{"name": "a", "spec": [3]}', "spec 1"),
        ('{"name": "a", "spec": {}, "weight": 0}', "weight"),
        ('{"name": "a", "spec": {}, "wieght": 1}', "wieght"),
        ('{"name": "a", "spec": {}}\n{"name": "a", "spec": {}}', "two specs called 'a'"),
        ('{"name": "a", "spec": {"secrets": {"T": "hunter2"}}}', "in no file"),
        ('{"name": "a", "spec": {"secrets": {"T": "env:EXCISE_NOT_SET"}}}', "EXCISE_NOT_SET"),
    ],
)
def test_a_wrong_file_of_specs_is_one_sentence(tmp_path: Path, text: str, part: str) -> None:
    file = tmp_path / "specs.jsonl"
    file.write_text(text)
    with pytest.raises(SpecError) as caught:
        read_many(file)
    assert part in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_secret_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXCISE_TEST_TOKEN", "hunter2")
    found = as_spec({"secrets": {"TOKEN": "env:EXCISE_TEST_TOKEN"}}, "here").secrets["TOKEN"]
    assert isinstance(found, Secret)
    assert found.reveal() == "hunter2"


@pytest.mark.parametrize("name", ["missing.jsonl", "missing.toml"])
def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path, name: str) -> None:
    with pytest.raises(SpecError, match="cannot be read"):
        read_many(tmp_path / name)


# ---- replay


def replayed(tmp_path: Path, *lines: object) -> tuple[Arrival, ...]:
    file = tmp_path / "load.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return replay(file, mix(3, 0), hold_s=7)


def test_a_replay_is_in_the_order_of_its_times(tmp_path: Path) -> None:
    found = replayed(
        tmp_path,
        {"at_s": 2, "spec": "r1@b", "hold_s": 0.5, "owner": "ann"},
        {"at_s": 0.25, "spec": {"workdir": "/srv"}},
    )
    assert times(found) == [0.25, 2]
    assert (found[0].spec, found[0].hold_s, found[0].owner) == (Spec(workdir="/srv"), 7, "")
    assert (found[1].name, found[1].spec, found[1].hold_s, found[1].owner) == ("r1@b", mix(3, 0)[2].spec, 0.5, "ann")


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ({"spec": "r0@a"}, "at_s"),
        ({"at_s": -1, "spec": "r0@a"}, "at_s=-1"),
        ({"at_s": 1, "spec": "r0@a", "hold_s": -2}, "hold_s=-2"),
        ({"at_s": 1, "spec": "nobody"}, "no spec is called 'nobody'; there are: r0@a, "),
        ({"at_s": 1, "spec": {"imgae": "x"}}, "imgae"),
        ({"at_s": 1, "spec": "r0@a", "hold": 2}, "hold"),
    ],
)
def test_a_wrong_line_of_a_replay_is_named(tmp_path: Path, line: object, part: str) -> None:
    with pytest.raises(SpecError) as caught:
        replayed(tmp_path, {"at_s": 0, "spec": "r0@a"}, line)
    assert part in str(caught.value)
    assert "line 2" in str(caught.value)


def test_an_empty_replay_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="has no arrival"):
        replayed(tmp_path)
