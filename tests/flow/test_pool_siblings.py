"""Sibling commits over sandboxes that are real: the tree of the commit that was asked for, and nothing of the one before."""

import asyncio
from collections.abc import Callable

import pytest

from excise.action import Shell
from excise.sandbox import Sandbox
from excise.spec import Spec, Stage, Step
from excise.substrates.pool import Pool

# The repository is made by a step of the image's own, the same in every sandbox: a task, and the fix that is its answer.
_MAKE = r"""set -e
mkdir -p /srv/project && cd /srv/project
git init -q . && git config user.name n && git config user.email n@localhost
git config uploadpack.allowAnySHA1InWant true
export GIT_AUTHOR_DATE='2020-01-01T00:00:00Z' GIT_COMMITTER_DATE='2020-01-01T00:00:00Z'
mkdir package
printf 'def answer():\n    return None\n' >package/code.py
printf 'kept\n' >same.txt
printf 'only in the task\n' >task.txt
git add . && git commit -q -m task
printf 'def answer():\n    return "the-word-of-the-fix"\n' >package/code.py
printf 'the-word-of-the-fix\n' >added.txt
git rm -q task.txt && git add . && git commit -q -m 'the-word-of-the-fix'
git log --format=%H >/srv/commits
"""
SHOWN = Step("project", (Shell(_MAKE),), Stage.IMAGE)
DEPS = "mkdir -p /opt/deps && echo installed > /opt/deps/done && python3 -c 'import package.code'"
LOOK = r"""set -u
rm -rf /srv/project /srv/commits
grep -rlF the-word-of-the-fix / --exclude-dir=proc --exclude-dir=sys --exclude-dir=dev 2>/dev/null
grep -rlF the-word-of-the-fix /dev/shm 2>/dev/null
git cat-file --batch-all-objects --batch --buffer | grep -aF the-word-of-the-fix
git cat-file -e "$fix" 2>/dev/null && echo "the fix's commit is there"
grep -rlF "$fix" .git
git fsck --no-dangling
git status --porcelain --ignored
"""


def spec(commit: str, *, shared: bool = False) -> Spec:
    """No cache beside what was compiled for this commit: it is looked for below."""
    own = Spec(repo=f"/srv/project@{commit}", deps=DEPS, lock="1").all_steps()
    env = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
    found = Spec(image="excise/base", steps=(SHOWN, *own), workdir="/work", env=env)
    return found if shared else found.unshared()


async def commits_of(pool: Pool) -> tuple[str, str]:
    """Of the task, and of its fix."""
    async with Sandbox(pool, Spec(image="excise/base", steps=(SHOWN,), workdir="/work")) as box:
        fix, task = (await box.read("/srv/commits")).decode().split()
        return task, fix


@pytest.mark.parametrize("address", ["namespace", "docker", "docker+guest"])
@pytest.mark.parametrize("shared", [False, True])
def test_a_sibling_becomes_the_commit_that_was_asked_for_and_forgets_its_own(
    address: str, shared: bool, runs_here: Callable[[str], None]
) -> None:
    runs_here(address)

    async def body() -> None:
        async with Pool(address, policy="none", reuse="never", pressure=False) as pool:
            task, fix = await commits_of(pool)
            await pool.fill(spec(fix, shared=shared))
            async with Sandbox(pool, spec(task, shared=shared)) as box:
                assert (await box.run("git rev-parse HEAD")).text.strip() == task
                assert (await box.run("cat package/code.py")).stdout == b"def answer():\n    return None\n"
                assert (await box.run("cat same.txt task.txt /opt/deps/done")).stdout == b"kept\nonly in the task\ninstalled\n"
                looked = await box.run(LOOK, env={"fix": fix})
                assert looked.text.strip() in ("", "!! package/__pycache__/"), looked.text
            assert pool.figures().hits["sibling"] == 1

    asyncio.run(body())


def test_what_is_near_is_still_taken_after_a_create_was_measured(runs_here: Callable[[str], None]) -> None:
    """Steps that are run in every sandbox are measured where the source keeps those that are not."""
    runs_here("namespace")

    async def body() -> None:
        async with Pool("namespace", policy="none", reuse="never", pressure=False) as pool:
            task, fix = await commits_of(pool)
            async with Sandbox(pool, spec(task)):
                pass
            assert pool.figures().hits["image"] == 0
            for given, depth in ((fix, Stage.DEPS), (task, Stage.REPO)):
                await pool.fill(spec(given), stage=depth)
                async with Sandbox(pool, spec(task)):
                    pass
            assert (pool.figures().hits["sibling"], pool.figures().hits["repo"]) == (1, 1)

    asyncio.run(body())
