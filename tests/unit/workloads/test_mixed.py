"""200 tasks: half of the repositories have siblings, every state answers differently, and all is the same everywhere."""

import asyncio
import itertools
import subprocess
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from excise.api import connect
from excise.sandbox import Sandbox
from excise.spec import Stage
from excise.storage.image import remove, resolve
from excise.workloads.mixed import Mixed, at_depth
from excise.workloads.repositories import LOCK_FILE, Built, built, history


def whole() -> Mixed:
    """All 200 with made-up hashes: nothing of git is needed to count them."""
    mixed = Mixed()
    heads = {f"r{n:03}.{c.number}": f"{(n * 7919 + c.number * 104729) % 2**32:040x}" for n in range(100) for c in history(n)}
    mixed._built = Built(place=Path("/nowhere"), heads=heads)
    return mixed


def test_half_of_the_repositories_have_siblings():
    commits = Counter(task.commit.repository for task in whole().tasks)
    assert len(whole().tasks) == 200
    assert Counter(commits.values()) == {1: 50, 3: 50}


def test_siblings_have_one_lock_file_mostly_and_not_always():
    locks = [len({commit.lock for commit in history(number)}) for number in range(0, 100, 2)]
    assert Counter(locks) == {1: 40, 2: 10}
    assert len({commit.lock for number in range(100) for commit in history(number)}) == 110


def test_a_sibling_is_another_commit_with_the_same_lock():
    mixed = whole()
    assert len(mixed.with_sibling) == 40 * 3 + 10 * 2
    for number in mixed.with_sibling:
        one, other = mixed.tasks[number], mixed.sibling(number)
        assert one.sha != other.sha
        assert (one.commit.repository, one.commit.lock) == (other.commit.repository, other.commit.lock)


def test_which_is_asked_for_most_has_nothing_to_do_with_who_its_siblings_are():
    tasks = whole().tasks
    beside = sum(one.commit.repository == other.commit.repository for one, other in itertools.pairwise(tasks))
    assert beside < 10


def test_a_start_state_has_a_step_for_every_depth():
    spec = whole().tasks[0].spec("host")
    assert [step.stage for step in spec.all_steps()] == [Stage.IMAGE, Stage.REPO, Stage.DEPS]
    assert [len(at_depth(spec, depth).steps) for depth in ("base", "image", "repo", "deps")] == [0, 1, 2, 3]
    assert spec.steps[1].of
    assert spec.steps[2].lock == whole().tasks[0].commit.digest


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Mixed:
    mixed = Mixed(4)
    mixed.build(tmp_path_factory.mktemp("cache"))
    return mixed


def test_repositories_are_the_same_every_time(four: Mixed, tmp_path: Path):
    again = built(4, tmp_path)
    assert again.heads == {f"r{t.commit.repository:03}.{t.commit.number}": t.sha for t in four.tasks}
    assert built(4, tmp_path) == again
    assert not list(tmp_path.glob("mixed/.making-*"))


def test_every_commit_answers_differently(four: Mixed, tmp_path: Path):
    assert four._built is not None
    bare = four._built.place
    answers = set()
    for task in four.tasks:
        place = tmp_path / task.sha
        url = bare / f"r{task.commit.repository:03}.git"
        subprocess.run(["git", "clone", "-q", str(url), str(place)], check=True, timeout=60)
        subprocess.run(["git", "-C", str(place), "checkout", "-q", task.sha], check=True, timeout=60)
        assert (place / LOCK_FILE).read_text() == task.commit.lock
        version = tmp_path / "VERSION"
        version.write_text(task.commit.lock.split()[-1] + "\n")
        command = ["python3", "main.py", str(version), "nonce"]
        said = subprocess.run(command, cwd=place, check=True, capture_output=True, timeout=60).stdout
        assert said == task.turns("nonce")[0].expect.stdout
        answers.add(said)
    assert len(answers) == len(four.tasks) == 8


def test_an_image_gets_the_repositories_as_roots(four: Mixed, tmp_path: Path):
    (tmp_path / "mixed").mkdir()
    base = tmp_path / "base.tar"
    with tarfile.open(base, "w") as tar:
        tar.addfile(tarfile.TarInfo("etc"))
    made = four.image_over(base, "sha256:abc", tmp_path)
    assert four.image_over(base, "sha256:abc", tmp_path) == made
    with tarfile.open(made) as tar:
        entries = {entry.name: entry for entry in tar}
    assert "etc" in entries
    assert "srv/repositories/r000.git/HEAD" in entries
    assert {(entry.uid, entry.mtime) for name, entry in entries.items() if name.startswith("srv/")} == {(0, 0)}
    assert list((tmp_path / "mixed").iterdir()) == [made]


def test_a_rollout_sees_an_earlier_one_and_a_siblings_commit(
    four: Mixed, tmp_path: Path, runs_here: Callable[[str], None], must_work: Callable[[str, str], None]
):
    runs_here("namespace")
    task = next(one for one in four.tasks if one.others)

    async def answers() -> list[str | None]:
        try:
            base = await resolve("excise/base")
        except Exception as error:  # whatever it is, there is no image
            must_work("excise/base", str(error))
            raise
        (tmp_path / "mixed").mkdir()
        assert base.tar is not None
        image = str(four.image_over(base.tar, base.digest, tmp_path))
        try:
            return await asked(image)
        finally:
            await remove((await resolve(image)).digest)  # another of the same content may have been here first

    async def asked(image: str) -> list[str | None]:
        seen = []
        (turn,) = task.turns("one")
        async with connect("namespace") as substrate, Sandbox(substrate, task.spec(image).unshared()) as box:
            seen.append(turn.expect.fault(await box.run(turn.action)))
            seen.append(turn.expect.fault(await box.run(turn.action)))
        async with connect("namespace") as substrate, Sandbox(substrate, task.spec(image).unshared()) as box:
            url = f"/srv/repositories/r{task.commit.repository:03}.git"
            assert (await box.run(["git", "fetch", "-q", "--depth", "1", url, task.others[0]])).ok
            seen.append(turn.expect.fault(await box.run(turn.action)))
        return seen

    clean, used, leaked = asyncio.run(answers())
    assert clean is None
    assert "exit code 4" in str(used)
    assert "exit code 3" in str(leaked)
