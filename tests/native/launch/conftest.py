"""Who starts launchers: root, a user with subordinate ids, and one without."""

import os
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from launched import Launch, Who, make_image

from reachable import reachable

NATIVE = Path(__file__).parents[3] / "native"


@pytest.fixture(scope="session")
def launch_program(tmp_path_factory: pytest.TempPathFactory, must_work: Callable[[str, str], None]) -> Generator[int]:
    """excise-launch, built from its sources; by descriptor, so that an ordinary user can run what lies in root's directory."""
    if os.geteuid() != 0:
        pytest.skip("starts launchers as root and as other users")
    out = tmp_path_factory.mktemp("native")
    try:
        made = subprocess.run(
            ["make", "-s", f"-j{os.cpu_count()}", "-C", str(NATIVE), f"OUT={out}", str(out / "excise-launch")],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
    except FileNotFoundError as error:
        must_work("native", str(error))
        raise
    if made.returncode != 0 and "gcc: No such file" in made.stderr:
        must_work("native", made.stderr)
    assert made.returncode == 0, made.stderr
    program = os.open(out / "excise-launch", os.O_PATH)
    yield program
    os.close(program)


@pytest.fixture(scope="session")
def ordinary_users() -> Generator[dict[str, int]]:
    """Two of this machine's users, made for these tests: one has subordinate ids, the other has none."""
    made: dict[str, int] = {}
    names = {kind: f"excise-{kind}-{os.getpid()}" for kind in ("subordinate", "single")}
    try:
        for kind, name in names.items():
            _command("useradd", "--no-create-home", "--shell", "/bin/sh", *(["--system"] if kind == "single" else []), name)
            made[kind] = int(_command("id", "-u", name))
        yield made
    finally:
        for kind, uid in made.items():
            _command("userdel", names[kind])
            place = Path(f"/tmp/excise-{uid}")
            if place.is_dir():
                (place / "launch").rmdir()
                place.rmdir()


def _command(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


@pytest.fixture(scope="session", params=["root", "subordinate", "single"])
def who(
    request: pytest.FixtureRequest,
    launch_program: int,
    ordinary_users: dict[str, int],
    tmp_path_factory: pytest.TempPathFactory,
) -> Who:
    """root; an ordinary user with subordinate ids; one without."""
    user = None if request.param == "root" else ordinary_users[request.param]
    place = tmp_path_factory.mktemp("image")
    reachable(place)
    return Who(launch_program, make_image(place / "root", user or 0), user, 1 if request.param == "single" else 65536)


@pytest.fixture
def root(launch_program: int, tmp_path: Path) -> Who:
    return Who(launch_program, make_image(tmp_path / "root", 0), None, 65536)


@pytest.fixture
def launch(who: Who) -> Generator[Launch]:
    with who.launch() as launch:
        yield launch
