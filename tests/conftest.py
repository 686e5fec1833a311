"""For every test: what must work on this machine, and that nothing is left on it."""

import asyncio
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Generator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from excise.errors import ExciseError
from excise.registry import make


def must_work_names() -> frozenset[str]:
    """EXCISE_MUST_WORK=docker,bubblewrap: parts whose absence is a failure here, not a skip."""
    return frozenset(name for name in os.environ.get("EXCISE_MUST_WORK", "").split(",") if name)


def _missing(name: str, reason: str) -> None:
    if name in must_work_names():
        pytest.fail(f"{name} must work here, and does not: {reason}", pytrace=False)
    pytest.skip(f"{name} does not work here: {reason}")


@pytest.fixture(scope="session")
def must_work() -> Callable[[str, str], None]:
    """`must_work(name, reason)`: skip, because the part `name` is missing; fail where EXCISE_MUST_WORK names it."""
    return _missing


@pytest.fixture(scope="session")
def runs_here() -> Callable[[str], None]:
    """`runs_here(address)`: go on only where a substrate's own probe succeeds; skip or fail as `must_work` does."""
    return _runs_here


def _runs_here(address: str) -> None:
    refusal = _refusal(address)
    if refusal is not None:
        _missing(address.removeprefix("pool:").partition("?")[0].partition(":")[0], refusal)


@cache
def _refusal(address: str) -> str | None:
    async def probe() -> None:
        substrate = make(address)
        try:
            await substrate.probe()
        finally:
            await substrate.close()

    try:
        asyncio.run(probe())
    except ExciseError as error:
        return str(error)
    return None


@pytest.fixture(scope="session")
def chosen(request: pytest.FixtureRequest) -> Callable[[Callable[..., None]], list[dict[str, Any]]]:
    """`chosen(test)`: the parameters of every run of this test that is to come, for what is done for all of them at once."""

    def parameters(test: Callable[..., None]) -> list[dict[str, Any]]:
        runs = (item for item in request.session.items if isinstance(item, pytest.Function) and item.function is test)
        return [dict(run.callspec.params) for run in runs]

    return parameters


@pytest.fixture(scope="session", autouse=True)
def own_state() -> Generator[Path]:
    """Live sandboxes of the tests lie in a directory of their own, so that what is left there is ours. Images stay shared."""
    place = Path(tempfile.mkdtemp(prefix="excise-tests-"))
    before = os.environ.get("XDG_RUNTIME_DIR")
    os.environ["XDG_RUNTIME_DIR"] = str(place)
    yield place
    if before is None:
        del os.environ["XDG_RUNTIME_DIR"]
    else:
        os.environ["XDG_RUNTIME_DIR"] = before
    shutil.rmtree(place)


@pytest.fixture(scope="session", autouse=True)
def nothing_left(own_state: Path) -> Generator[None]:
    """No process and no directory of the tests outlives them: those of this pytest process, of which there may be several."""
    yield
    assert _descendants(os.getpid()) == []
    assert _inside(own_state) == []
    left = [str(path) for path in own_state.glob("excise/*")]
    assert left == []


_Host = dict[str, set[str]]
_BEFORE = pytest.StashKey[_Host]()


PIECES = {"cluster": ("kubernetes", "test_cluster"), "machines": ("microvm", "test_machines", "test_vm"), "gvisor": ("gvisor",)}
"""What stays together in one process of `-n` besides files: a test kills the cluster's kubelet; machines want a core each."""


def _piece(nodeid: str) -> str:
    file, _, test = nodeid.partition("::")
    named = Path(file).stem + test.partition("[")[2]
    return next((piece for piece, words in PIECES.items() if any(word in named for word in words)), file)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest pieces of work begin first."""
    longest = ("cluster", "tests/contract/test_contract.py", "machines", "gvisor")
    items.sort(key=lambda item: longest.index(piece) if (piece := _piece(item.nodeid)) in longest else len(longest))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Not xdist's own groups: they go by a suffix to a test's id, which pytest 9 no longer lets it add."""
    from xdist.scheduler import LoadScopeScheduling  # only who runs with -n has it

    class Pieces(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _piece(nodeid)

    return Pieces(config, log)


def pytest_sessionstart(session: pytest.Session) -> None:
    """What is the whole machine's is looked at by the one process that others, if there are any, work for."""
    if not hasattr(session.config, "workerinput"):
        session.stash[_BEFORE] = _host()


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None]:
    """No mount, container, snapshot or control group of the tests outlives them."""
    yield
    if _BEFORE not in session.stash:
        return
    now = _host()
    left = {what: sorted(now[what] - before) for what, before in session.stash[_BEFORE].items() if now[what] - before}
    if left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        assert reporter is not None
        for what, names in left.items():
            reporter.write_line(f"LEFT {what}: {', '.join(names)}", red=True)


def _host() -> _Host:
    looks = {"mounts": _mounts, "containers": _containers, "snapshots": _snapshots, "groups": _groups, "pods": _pods}
    return {what: look() for what, look in looks.items()}


def _descendants(pid: int) -> list[str]:
    """Every process below `pid`, with its command line; a zombie that waits for us to reap it is one as well."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended while we looked
        children.setdefault(int(after_name[1]), []).append(int(entry.parent.name))
    found: list[str] = []
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(), []):
            waiting.append(child)
            try:
                found.append(Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode() or f"pid {child}")
            except OSError:
                continue
    return found


def _inside(place: Path) -> list[str]:
    """Processes that detached from us, seen by where they are: their working or root directory lies in `place`."""
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        for link in ("cwd", "root"):
            try:
                target = str((process / link).readlink())
            except OSError:
                continue  # it ended while we looked, or is another user's
            if target.startswith(str(place)):
                found.append(f"pid {process.name}: {link} {target}")
    return found


def _mounts() -> set[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return {line for line in lines if "excise" in line and "/excise-substrates/" not in line}  # a cluster's are its pods'


def _groups() -> set[str]:
    """Control groups named after a sandbox whose owner is gone. Living owners are others: ours have ended by then."""
    found: set[str] = set()
    for top, names, _ in os.walk("/sys/fs/cgroup"):  # which passes over what goes while it looks
        for name in names:
            named = re.fullmatch(r"[a-z]+-(\d+)-\d+-[0-9a-f]{12}", name)
            if named and not Path(f"/proc/{named[1]}").exists():
                found.add(f"{top}/{name}")
    return found


def _containers() -> set[str]:
    """Of Docker, if it answers: those that carry our label."""
    return _docker("ps", "--all", "--filter", "label=excise")


def _snapshots() -> set[str]:
    """Of Docker: images that are snapshots of sandboxes."""
    return _docker("images", "--filter", "reference=excise/snapshot")


def _pods() -> set[str]:
    """Of the cluster that KUBECONFIG names, if it answers: sandboxes of either path."""

    async def look(address: str) -> set[str]:
        substrate = make(address)
        try:
            return {one.id for one in await substrate.list({})}
        except ExciseError:
            return set()
        finally:
            await substrate.close()

    return asyncio.run(look("kubernetes"))


def _docker(*words: str) -> set[str]:
    if shutil.which("docker") is None:
        return set()
    listed = subprocess.run(["docker", *words, "--quiet"], capture_output=True, text=True, check=False, timeout=60)
    return set(listed.stdout.split())
