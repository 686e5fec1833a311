"""Grading that a rollout cannot tamper with: python examples/grading.py [ADDRESS]

What the rollout leaves behind is a patch, and of that only what lies in the source directory. It is applied in a fresh sandbox
of the state that the rollout began with, where the hidden tests are mounted, read-only, for the first time.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

import msgspec

import excise
from excise import Exec, Sandbox, Shell, Spec, Step
from excise.spec import Mount
from excise.substrate import Snapshot, Substrate

SOURCE = "/srv/source"
HIDDEN = "/grading"
PYTHON = "/usr/bin/python3"
GIT = "/usr/bin/git"
NOT_GRADED = ("--exclude=.git", "--exclude=.git/*", "--exclude=conftest.py", "--exclude=*/conftest.py")

task = Spec(
    image="host",
    workdir="/srv",
    steps=(Step("task", (Shell(f"mkdir -p {SOURCE}; echo 'import sys; print(\"helo\", sys.argv[1])' > {SOURCE}/greet.py"),)),),
)
hidden_test = f"""
import subprocess, sys
for name in ("world", "moon"):
    # In a process of its own: what is imported here could do whatever this test can.
    seen = subprocess.run([sys.executable, "-I", "{SOURCE}/greet.py", name], capture_output=True, text=True, timeout=5)
    assert seen.stdout == f"hello {{name}}\\n", seen.stdout
"""


async def grade(substrate: Substrate, rollout: Sandbox, start: Snapshot, tests: Path) -> float:
    """1.0 if the hidden test `test.py` in the directory `tests` passes on what the rollout made of its sources."""
    try:
        patch = await rollout.diff(start, patch=True, under=SOURCE)
    except (excise.SpecError, OSError):  # more than a patch may be, or what cannot be read: the rollout's doing
        return 0.0
    if not patch:
        return 0.0
    spec = msgspec.structs.replace(start.spec, mounts=(Mount(str(tests), HIDDEN),), network="none", boot=(), ready=())
    fresh = msgspec.structs.replace(start, spec=spec, sessions=())
    async with Sandbox(substrate, fresh) as grader:
        # Exec, never a session, and by absolute paths: nothing of the rollout's is asked what to run.
        text = patch.encode("utf-8", "surrogateescape")
        applied = await grader.run(Exec((GIT, "apply", "--whitespace=nowarn", *NOT_GRADED, "-"), cwd=SOURCE, stdin=text))
        if not applied.ok:
            return 0.0
        # -I: neither PYTHONPATH nor the working directory nor the user's own packages; so no sitecustomize of the rollout's.
        return float((await grader.run(Exec((PYTHON, "-I", "-B", f"{HIDDEN}/test.py"), cwd=HIDDEN, timeout_s=60))).ok)


async def main(address: str, tests: Path) -> None:
    async with excise.connect(address) as substrate, Sandbox(substrate, task) as box:
        start = await box.snapshot()
        async with box.fork(2) as (honest, cheat):
            await honest.run(f"sed -i s/helo/hello/ {SOURCE}/greet.py")
            await cheat.run(f"mkdir {HIDDEN}; echo pass > {HIDDEN}/test.py; echo 'import os; os._exit(0)' > {SOURCE}/greet.py")
            print([await grade(substrate, each, start, tests) for each in (honest, cheat)])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)  # as programs inside, who are other users, must read it
        Path(place, "test.py").write_text(hidden_test)
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "namespace", Path(place)))
