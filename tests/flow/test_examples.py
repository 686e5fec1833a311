"""Every example runs, as a user would run it."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
ADDRESSES = ["fake", "local", "chroot", "namespace", "bubblewrap", "runc", "docker"]


def example(name: str, *words: str, cwd: Path | None = None) -> str:
    argv = [sys.executable, "-W", "error", str(EXAMPLES / name), *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=100, cwd=cwd)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("address", ADDRESSES)
def test_rollout(address: str, runs_here: Callable[[str], None]) -> None:
    runs_here(address)
    assert example("rollout.py", address) == f"{[1.0] * 8}\n"


@pytest.mark.parametrize("address", ["fake", "local", "namespace", "docker"])
def test_sync_rollout(address: str, runs_here: Callable[[str], None]) -> None:
    runs_here(address)
    assert example("sync_rollout.py", address) == f"{[1.0] * 8}\n"


@pytest.mark.parametrize("address", ["local", "namespace", "docker"])
def test_pool(address: str, runs_here: Callable[[str], None]) -> None:
    runs_here(address)
    assert example("pool.py", address).splitlines() == [f"{[1.0] * 4}", f"{[1.0] * 4}", "8 claims, 0 failed"]


def test_serve(runs_here: Callable[[str], None]) -> None:
    runs_here("namespace")
    assert example("serve.py").splitlines() == [str([float(number * number) for number in range(8)])]


def test_record() -> None:
    shares, sums = example("record.py", "local").splitlines()
    assert shares.startswith("model ")
    assert "work " in shares
    assert "tax " in shares
    assert sums.startswith("1 sandbox, ")


def test_measure(tmp_path: Path) -> None:
    lines = example("measure.py", "local", cwd=tmp_path).splitlines()
    assert any(line.startswith("local: tax rate ") for line in lines)
    assert list((tmp_path / "results").glob("*/*.jsonl"))


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example package, installed as pip installs it, with no index to ask."""
    place = tmp_path_factory.mktemp("plugin")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", "--target", str(place), str(EXAMPLES / "plugin")], check=True, timeout=100)
    return place


def with_plugin(place: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(place), "HOME": str(place)}
    return subprocess.run(argv, capture_output=True, text=True, env=env, check=False, timeout=100)


def test_the_plugin_is_found_by_its_name(plugin: Path) -> None:
    listed = with_plugin(plugin, sys.executable, "-c", "from excise.registry import names; print(*names())")
    assert "delayed" in listed.stdout.split()


def test_the_plugin_keeps_the_contract(plugin: Path) -> None:
    excise = str(Path(sys.executable).parent / "excise")
    cases = [word for name in ("cwd", "stdin-reaches") for word in ("--case", name)]
    done = with_plugin(plugin, excise, "check", "delayed?source=local&delay_s=0.001", *cases)
    assert done.stdout.splitlines()[-1].endswith("2 kept, 0 broken, 0 not declared, 0 not run"), done.stdout + done.stderr


def test_a_wrong_option_of_the_plugin_is_refused(plugin: Path) -> None:
    excise = str(Path(sys.executable).parent / "excise")
    done = with_plugin(plugin, excise, "run", "delayed?delay_s=long", "--", "true")
    assert done.returncode == 2
    assert "delay_s=long" in done.stderr
