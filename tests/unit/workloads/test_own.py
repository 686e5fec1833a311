import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from excise import Sandbox, Spec
from excise.action import Exec, Shell
from excise.errors import SpecError
from excise.spec import Allow
from excise.workloads.registry import make
from excise.workloads.workload import Workload, hosted, own_image

ALL = """
image = "excise/base"
repo = "https://host.example/project.git@0123abc"
setup = ["make prepare"]
env = { A = "b" }
workdir = "/work"
build_network = { hosts = ["host.example"], ports = [443] }
timeout_s = 60
commands = [
    "git log -1",
    ["not", "allowed"],
]
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "my.toml"


def test_commands_are_enough(path: Path) -> None:
    path.write_text('commands = ["ls", { run = ["cat", "x"], exit_code = 1, think_s = 2.5, timeout_s = 5, repeat = 2 }]')
    workload = make(str(path))
    first, *rest = workload.turns("n")
    assert first.action == Shell("ls", timeout_s=600.0)
    assert len(rest) == 2
    assert rest[0].action == Exec(("cat", "x"), timeout_s=5)
    assert (rest[0].expect.exit_code, rest[0].think_s) == (1, 2.5)
    assert own_image(workload) is None
    assert workload.spec("host") == Spec()


def test_everything_it_can_say(path: Path) -> None:
    path.write_text(ALL.replace('    ["not", "allowed"],\n', ""))
    workload = make(str(path))
    assert own_image(workload) == "excise/base"
    spec = workload.spec("excise/base")
    assert spec.repo == "https://host.example/project.git@0123abc"
    assert [step.name for step in spec.all_steps()] == ["repo", "setup"]
    assert (spec.env, spec.workdir, spec.build_network) == ({"A": "b"}, "/work", Allow(("host.example",), (443,)))
    assert workload.turns("n")[0].action == Shell("git log -1", timeout_s=60)


def git(place: Path, *words: str) -> str:
    argv = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-C", str(place), *words]
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=30).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    git(tmp_path, "init", "-q", "project")
    for number in (1, 2):
        (place / "number.txt").write_text(f"{number}\n")
        git(place, "add", ".")
        git(place, "commit", "-q", "-m", f"number {number}")
    (place / "number.txt").write_text("not committed\n")
    return place


async def faults(workload: Workload, address: str, cache: Path) -> list[str | None]:
    async with hosted(workload, cache), Sandbox(address, workload.spec("host")) as box:
        return [turn.expect.fault(await box.run(turn.action)) for turn in workload.turns("n")]


@pytest.mark.parametrize("address", ["local", "chroot", "namespace"])
@pytest.mark.parametrize(("commit", "number"), [("", 2), ("@HEAD~1", 1)])
@pytest.mark.usefixtures("has_tools")
def test_a_repository_of_this_machine(
    *, address: str, commit: str, number: int, path: Path, repository: Path, runs_here: Callable[[str], None]
) -> None:
    """What is committed there becomes the working directory, wherever the sandbox is."""
    runs_here(address)
    path.write_text(
        f'repo = "project{commit}"\nsetup = ["echo set up > ready.txt"]\n'
        "commands = [\n"
        f'  {{ run = "cat number.txt", pattern = "^{number}$" }},\n'
        '  { run = "git status --porcelain", pattern = "ready.txt" },\n'
        '  { run = "cat ready.txt; exit 3", exit_code = 3 },\n'
        '  { run = "exit 4", exit_code = "any" },\n'
        "]\n"
    )
    assert asyncio.run(faults(make(str(path)), address, path.parent)) == [None] * 4
    assert git(repository, "branch", "--list").split() in (["*", "master"], ["*", "main"])


def test_other_work_is_told(path: Path) -> None:
    path.write_text('commands = [{ run = "echo a", pattern = "b" }, "exit 1"]')
    found = asyncio.run(faults(make(str(path)), "local", path.parent))
    assert found == ["its answer has no 'b' but b'a\\n'", "exit code 1, not 0"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "my.toml is not a workload: Object missing required field `commands`; it has commands and"),
        ("commands = []", 'my.toml has no commands; it needs some, such as commands = ."make test".'),
        ("commands = [", "is not a workload: Invalid value"),
        ('commands = ["ls"]\ncolour = 1', "Object contains unknown field `colour`"),
        ('commands = [{ run = "ls", exit = 1 }]', "Object contains unknown field `exit`"),
        ('commands = [{ run = "ls", repeat = 0 }]', "a command runs at least once"),
        ('commands = [{ run = ["ls"], session = "m" }]', "a session takes shell text"),
        (ALL, "is not a workload: Expected"),
    ],
)
def test_a_wrong_file_is_one_sentence(path: Path, text: str, sentence: str) -> None:
    path.write_text(text)
    with pytest.raises(SpecError, match=sentence):
        make(str(path))


@pytest.mark.parametrize(
    ("repo", "reason"),
    [("nowhere@HEAD", "No such file"), (".", "not a git repository"), ("project@no-such", "single revision")],
)
@pytest.mark.usefixtures("repository")
def test_no_repository_is_one_sentence(path: Path, repo: str, reason: str) -> None:
    path.write_text(f'repo = "{repo}"\ncommands = ["ls"]')
    with pytest.raises(SpecError, match=f"cannot be used: .*{reason}.*; name a git repository, or url@commit"):
        asyncio.run(faults(make(str(path)), "local", path.parent))
