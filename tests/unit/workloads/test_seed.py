# The archives are real ones, from whatever index pip here is configured with; how one is found is tested against a server here.

import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from excise.errors import SpecError, SubstrateError
from excise.workloads.index import Settings, fetch, settings
from excise.workloads.seed import RECIPES, Seed, built

HEADS = {"a": "cea093a18ddb55f5a3167292bed063fb4a25cbbd", "b": "ff298531e7da9d260c4d801398db85c2d436fec6"}


def git(place: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(place), *words], check=True, capture_output=True, text=True, timeout=30).stdout


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory, must_work: Callable[[str, str], None]) -> dict[str, Seed]:
    cache = tmp_path_factory.mktemp("cache")
    try:
        return {name: built(recipe, cache) for name, recipe in RECIPES.items()}
    except SubstrateError as error:
        must_work("index", str(error))
        raise


@pytest.mark.parametrize("name", ["a", "b"])
def test_the_repository_is_the_same_everywhere(seeds: dict[str, Seed], name: str, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", str(seeds[name].place / "seed.bundle"), "clone")
    clone = tmp_path / "clone"
    assert git(clone, "rev-parse", "HEAD").strip() == HEADS[name]
    assert git(clone, "status", "--porcelain") == ""
    assert len(git(clone, "log", "--oneline").splitlines()) == 2
    assert git(seeds[name].served, "rev-parse", "main").strip() == HEADS[name]
    git(clone, "fsck", "--strict")


@pytest.mark.parametrize(("name", "changed"), [("a", "src/attr/validators.py"), ("b", "src/attr/_make.py")])
def test_the_patch_changes_the_one_file(seeds: dict[str, Seed], name: str, changed: str, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", str(seeds[name].place / "seed.bundle"), "clone")
    git(tmp_path / "clone", "apply", str(seeds[name].place / "fix.patch"))
    assert git(tmp_path / "clone", "diff", "--name-only") == f"{changed}\n"


def test_a_built_one_needs_no_index(seeds: dict[str, Seed]) -> None:
    def nobody() -> Settings:
        raise AssertionError("it asked for an index")

    assert built(RECIPES["a"], seeds["a"].place.parents[1], nobody) == seeds["a"]


def test_the_users_own_git_settings_change_nothing(
    seeds: dict[str, Seed], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del seeds  # there is an index
    config = tmp_path / "config"
    config.write_text("[core]\n\tautocrlf = true\n[commit]\n\tgpgSign = true\n[init]\n\tdefaultObjectFormat = sha256\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_AUTHOR_DATE", "2001-01-01T00:00:00")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    built(RECIPES["a"], tmp_path)


def test_two_at_once_build_it_once(seeds: dict[str, Seed], tmp_path: Path) -> None:
    del seeds
    both, asked = threading.Barrier(2), list[int]()

    def counted() -> Settings:
        asked.append(1)
        return settings()

    def build(_: int) -> Seed:
        both.wait(timeout=30)
        return built(RECIPES["a"], tmp_path, counted)

    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(build, range(2))
    assert one == other
    assert len(asked) == 1


def test_another_commit_is_an_error_and_leaves_nothing(seeds: dict[str, Seed], tmp_path: Path) -> None:
    del seeds
    (tmp_path / "seeds" / ".making-cut-off").mkdir(parents=True)
    other = msgspec.structs.replace(RECIPES["a"], head="0" * 40)
    with pytest.raises(SpecError, match=f"came out as {HEADS['a']}, not 0000"):
        built(other, tmp_path)
    assert [path.name for path in (tmp_path / "seeds").iterdir()] == ["lock"]


def test_another_file_of_that_name_is_refused(tmp_path: Path) -> None:
    archive = RECIPES["a"].buggy
    (tmp_path / archive.file).write_bytes(b"something else")
    with pytest.raises(SpecError, match=r"attrs-25.4.0.tar.gz from .* is another file: its sha256 is .*, not 16d5969b"):
        fetch(archive, Settings(folders=(tmp_path,)))
