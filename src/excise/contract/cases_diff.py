"""diff: what changed since the sandbox's start, or since a snapshot, as paths and as a patch."""

import posixpath

from excise.contract import scripts
from excise.contract.bench import Bench
from excise.contract.case import case, equal
from excise.contract.cases_states import SNAPSHOT, snapshot_of
from excise.sandbox import Sandbox
from excise.substrate import Snapshot


async def _change(box: Sandbox) -> None:
    """Change one, delete one and a directory, add one file, beside one that stays. The changed one's length is the same."""
    await box.write("diff/changed", b"one\nzwei\nthree")
    await box.remove("diff/removed")
    await box.remove("diff/gone", recursive=True)
    await box.write("diff/new/added", b"new\n")


async def _prepare(box: Sandbox) -> None:
    for name in ("changed", "gone/deep/removed", "removed", "stays"):
        await box.write(f"diff/{name}", b"one\ntwo\nthree\n")


_CHANGES = [("changed", "modified"), ("gone", "deleted"), ("new", "added"), ("new/added", "added"), ("removed", "deleted")]
_ON_STATE = (*SNAPSHOT, "diff.start")


async def _told(box: Sandbox, since: Snapshot | None = None) -> list[tuple[str, str]]:
    """The changes in the directory these cases work in."""
    under = posixpath.join((await box.run(scripts.PRINT_WORKDIR)).stdout.decode().strip(), "diff")
    return [(one.path.removeprefix(f"{under}/"), one.kind) for one in await box.diff(since, under=under)]


@case(
    promise="diff tells what was added, modified and deleted since the sandbox's start, and nothing else.",
    why="The patch is the rollout's result: a file that is missed, or one that only looks changed, is a wrong result.",
    needs=_ON_STATE,
)
async def diff_tells_changes(bench: Bench) -> None:
    box = await bench.sandbox()
    await _prepare(box)
    snapshot = await snapshot_of(bench, box)
    await box.reset(snapshot)
    equal(await _told(box), [], "what has changed right after a reset")
    await _change(box)
    equal(await _told(box), _CHANGES, "what has changed since the reset")
    again = await bench.sandbox(snapshot)
    await _change(again)
    equal(await _told(again), _CHANGES, "what has changed since the fork")


@case(
    promise="diff(since) tells what has changed since that snapshot, whatever changed before it.",
    why="A sandbox that was prepared by hand would else present the preparation as the rollout's work.",
    needs=(*SNAPSHOT, "diff.snapshot"),
)
async def diff_since_snapshot(bench: Bench) -> None:
    box = await bench.sandbox()
    await _prepare(box)
    snapshot = await snapshot_of(bench, box)
    equal(await _told(box, snapshot), [], "what has changed right after the snapshot")
    await _change(box)
    equal(await _told(box, snapshot), _CHANGES, "what has changed since the snapshot")


@case(
    promise="diff as a patch holds what files held before and hold now.",
    why="A list of names cannot be graded, kept or applied elsewhere.",
    needs=_ON_STATE,
)
async def diff_as_patch(bench: Bench) -> None:
    box = await bench.sandbox()
    await _prepare(box)
    snapshot = await snapshot_of(bench, box)
    await box.reset(snapshot)
    await _change(box)
    under = posixpath.join((await box.run(scripts.PRINT_WORKDIR)).stdout.decode().strip(), "diff")
    patch = await box.diff(patch=True, under=under)
    lines = [line for line in patch.splitlines() if not line.startswith("index ")]
    equal(lines, _PATCH, "the patch")


_PATCH = """\
diff --git a/changed b/changed
--- a/changed
+++ b/changed
@@ -1,3 +1,3 @@
 one
-two
-three
+zwei
+three
\\ No newline at end of file
diff --git a/gone/deep/removed b/gone/deep/removed
deleted file mode 100644
--- a/gone/deep/removed
+++ /dev/null
@@ -1,3 +0,0 @@
-one
-two
-three
diff --git a/new/added b/new/added
new file mode 100644
--- /dev/null
+++ b/new/added
@@ -0,0 +1 @@
+new
diff --git a/removed b/removed
deleted file mode 100644
--- a/removed
+++ /dev/null
@@ -1,3 +0,0 @@
-one
-two
-three
""".splitlines()
