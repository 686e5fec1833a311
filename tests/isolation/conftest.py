"""Sandboxes to break out of, and the same attempts where nothing holds them, so that a refusal means something."""

import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Callable, Generator
from functools import cache
from pathlib import Path

import pytest

from excise.errors import Unsupported
from excise.spec import Limits, Spec
from excise.sync import Sandbox, connect, probe
from reachable import reachable

HERE = Path(__file__).parent
INSIDE = "/tmp/attempts"
FRESH_NAMESPACE = ["unshare", "--user", "--map-root-user", "--fork", "--mount-proc"]
FRESH_NAMESPACE += [f"--{kind}" for kind in ("mount", "pid", "ipc", "net", "uts", "cgroup")]

Attempt = Callable[..., str]


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory, must_work: Callable[[str, str], None]) -> Path:
    """The attempts, as a static program."""
    if shutil.which("gcc") is None:
        must_work("native", "gcc is not installed")
    built = tmp_path_factory.mktemp("attempts") / "attempts"
    options = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-static"]
    subprocess.run(["gcc", *options, "-o", built, HERE / "attempts.c", HERE / "processes.c"], check=True, timeout=60)
    reachable(built.parent)  # for controls that run as another user
    return built


@pytest.fixture(scope="module")
def box(request: pytest.FixtureRequest, runs_here: Callable[[str], None], program: Path) -> Generator[Sandbox]:
    """A sandbox of the module's ADDRESS, of namespace if it names none, and the attempts in it."""
    address = getattr(request.module, "ADDRESS", "namespace")
    runs_here(address)
    with Sandbox(address, Spec(image="host"), timeout_s=60) as sandbox:
        sandbox.write(INSIDE, program.read_bytes(), mode=0o755)
        yield sandbox


@pytest.fixture(scope="module")
def limited(runs_here: Callable[[str], None], must_work: Callable[[str, str], None]) -> Callable[..., Sandbox]:
    """`limited(pids=64, ...)`: a sandbox held to that; skips where the machine cannot hold one."""

    @cache
    def enforced() -> frozenset[str]:
        with connect("namespace") as substrate:
            return probe(substrate).limits

    def make(**limits: float) -> Sandbox:
        runs_here("namespace")
        lacking = limits.keys() - enforced()
        if lacking:
            must_work("cgroups", f"{', '.join(sorted(lacking))} cannot be enforced by this user")
        return Sandbox("namespace", Spec(image="host", limits=Limits(**limits)), timeout_s=60)  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="module")
def attempt(box: Sandbox) -> Attempt:
    """`attempt(name, *words, user=...)` from inside: "succeeded", or the errno that refused it."""

    def perform(*words: str, user: str | None = None) -> str:
        seen = box.run([INSIDE, *words], user=user, timeout_s=30)
        if seen.signal is not None:
            return f"signal {seen.signal}"
        assert seen.exit_code in (0, 1), seen.stderr
        return seen.stdout.decode().strip()

    return perform


@pytest.fixture
def control(program: Path, tmp_path: Path) -> Attempt:
    """The same by a process that nothing holds: on the host, or as the root of a fresh namespace where that harms less."""

    def perform(*words: str, where: str = "host") -> str:
        start = [] if where == "host" else FRESH_NAMESPACE
        scratch = tmp_path / "scratch"
        scratch.mkdir(exist_ok=True)
        done = subprocess.run(
            [*start, program, *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
            env={**os.environ, "TMPDIR": str(scratch)},
        )
        assert done.returncode in (0, 1), done.stderr
        return done.stdout.strip()

    return perform


@pytest.fixture
def as_root() -> None:
    """For controls that only the host's root can succeed at."""
    if os.geteuid() != 0:
        pytest.skip("only the host's root can show that this attempt could succeed")


@pytest.fixture
def other_users(box: Sandbox) -> None:
    """For what needs more than one user inside."""
    try:
        box.run(["true"], user="1000")
    except Unsupported:
        pytest.skip("a sandbox has one user here: this user has no range of subordinate ids")


@pytest.fixture(scope="session")
def uid_outside() -> Callable[[Sandbox], int]:
    """`uid_outside(box)`: who the root of a sandbox is to us. Its own map is told in the numbers of the namespace around it."""

    def look(box: Sandbox) -> int:
        marker = secrets.token_hex(8)
        process = box.start(["sh", "-c", "echo; sleep 60; :", marker])
        next(process)  # it runs
        found = next(entry.parent for entry in Path("/proc").glob("[0-9]*/cmdline") if _text(entry).endswith(f"{marker}\0"))
        uid = re.search(r"^Uid:\t(\d+)", (found / "status").read_text(), re.MULTILINE)
        process.kill()
        process.wait()
        assert uid is not None
        return int(uid[1])

    return look


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""  # it ended while we looked
