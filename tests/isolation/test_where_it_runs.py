"""Where namespace sandboxes can be made is found by trying: as root, as ordinary users, and inside of containers.

What is denied is explained, and the change that is advised is the one that then works: the flags are taken from the text.
"""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

import excise
from excise.registry import make
from excise.substrates.docker import DockerSubstrate

PROGRAM = """
import asyncio, json, sys
from excise import Sandbox
from excise.errors import ExciseError
from excise.registry import make

async def main():
    substrate = make("namespace")
    try:
        capabilities = await substrate.probe()
        async with Sandbox(substrate) as box:
            seen = await box.run("id -u; cat /proc/self/uid_map; touch /x && echo made")
        return {"users": capabilities.users, "isolates": sorted(capabilities.isolates), "text": seen.text}
    except ExciseError as error:
        return {"error": str(error)}
    finally:
        await substrate.close()

print(json.dumps(asyncio.run(main())))
"""
PACKAGE = Path(excise.__file__).parents[1]
SITE = Path(msgspec.__file__).parents[1]


def tried(argv: Sequence[str]) -> dict[str, Any]:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# ---- users


def test_as_root(runs_here: Callable[[str], None]) -> None:
    if os.geteuid() != 0:
        pytest.skip("this is not root")
    runs_here("namespace")
    seen = tried([sys.executable, "-c", PROGRAM])
    assert seen["users"]
    assert "users" in seen["isolates"]
    uid, *uid_map, made = seen["text"].splitlines()
    assert (uid, made) == ("0", "made")
    ranges = [tuple(map(int, line.split())) for line in uid_map]
    assert sum(count for _, _, count in ranges) == 65536
    assert all(outside > 65535 for _, outside, _ in ranges), "ids inside are ids of the host's own users"


@pytest.fixture
def user(request: pytest.FixtureRequest, must_work: Callable[[str, str], None]) -> Generator[list[str]]:
    """The words that start Python as an ordinary user; with a range of uids of its own, or without."""
    if os.geteuid() != 0 or shutil.which("useradd") is None:
        pytest.skip("only root makes users")
    name = f"excise-t{os.getpid()}"
    ranges = [] if request.param else ["-K", "SUB_UID_COUNT=0", "-K", "SUB_GID_COUNT=0"]
    subprocess.run(["useradd", "--create-home", *ranges, name], check=True, timeout=30)
    try:
        home = Path(f"~{name}").expanduser()
        words = ["runuser", "-u", name, "--", "env", "-i", f"HOME={home}", f"TMPDIR={home}", "PATH=/usr/bin:/bin"]
        words.append(f"PYTHONPATH={PACKAGE}:{SITE}")
        # Our own interpreter may lie in a directory of root's alone; then the machine's, with our packages.
        for python in (sys.executable, "/usr/bin/python3"):
            if subprocess.run([*words, python, "-c", "import excise"], check=False, timeout=30).returncode == 0:
                yield [*words, python]
                return
        must_work("user", f"an ordinary user cannot run {sys.executable} or /usr/bin/python3 with {PACKAGE}")
    finally:
        subprocess.run(["userdel", "--remove", name], check=True, timeout=30, stderr=subprocess.DEVNULL)


@pytest.mark.parametrize("user", [True], indirect=True)
def test_as_an_ordinary_user_with_a_range_of_uids(user: list[str], runs_here: Callable[[str], None]) -> None:
    runs_here("namespace")
    seen = tried([*user, "-c", PROGRAM])
    assert seen["users"], seen
    assert "users" not in seen["isolates"]  # root inside is this user outside
    uid, *uid_map, made = seen["text"].splitlines()
    assert (uid, made) == ("0", "made")
    assert sum(int(line.split()[2]) for line in uid_map) == 65536


@pytest.mark.parametrize("user", [False], indirect=True)
def test_as_an_ordinary_user_without(user: list[str], runs_here: Callable[[str], None]) -> None:
    runs_here("namespace")
    seen = tried([*user, "-c", PROGRAM])
    assert not seen["users"], seen
    uid, uid_map, made = seen["text"].splitlines()
    assert (uid, uid_map.split()[2], made) == ("0", "1", "made")


@pytest.mark.parametrize("user", [False], indirect=True)
def test_doctor_tells_an_ordinary_user_how_to_get_more_uids(user: list[str], runs_here: Callable[[str], None]) -> None:
    runs_here("namespace")
    command = "import sys; from excise.cli import main; sys.exit(main())"
    found = tried([*user, "-c", command, "doctor", "--json"])
    (uids,) = [finding for finding in found["machine"] if finding["name"] == "uids of a sandbox"]
    assert not uids["works"]
    assert "/etc/subuid" in uids["detail"]
    assert "usermod --add-subuids" in uids["remedy"]


def test_doctor_says_of_control_groups_what_namespace_can_limit(runs_here: Callable[[str], None]) -> None:
    runs_here("namespace")
    found = tried([str(Path(sys.executable).parent / "excise"), "doctor", "--json"])
    (groups,) = [finding for finding in found["machine"] if finding["name"] == "cgroups"]
    (namespace,) = [finding for finding in found["substrates"] if finding["name"] == "namespace"]
    said = namespace["detail"].rpartition("limits ")[2].split(", ")
    for name in ("memory_bytes", "cpus", "pids"):
        assert (name in groups["detail"]) == (name in said)
    assert groups["works"] == ({"memory_bytes", "cpus", "pids"} <= set(said))


# ---- containers


@pytest.fixture(scope="module")
def container(runs_here: Callable[[str], None], must_work: Callable[[str, str], None]) -> Callable[..., dict[str, Any]]:
    """`container(*flags)`: what the program says in a container that was started with these flags."""
    runs_here("docker")
    runs_here("namespace")
    if shutil.which("docker") is None:
        must_work("docker", "the docker command is not installed")
    reference = asyncio.run(held())

    def run(*flags: str) -> dict[str, Any]:
        binds = ["-v", f"{PACKAGE}:/package:ro", "-v", f"{SITE}:/site:ro", "-e", "PYTHONPATH=/package:/site"]
        return tried(
            ["docker", "run", "--rm", "--label", "excise=1", *binds, *flags, reference, "python3", "-c", PROGRAM],
        )

    return run


async def held() -> str:
    """The daemon's name for excise/base."""
    substrate = make("docker")
    assert isinstance(substrate, DockerSubstrate)
    try:
        return (await substrate._images.prepare("excise/base")).reference
    finally:
        await substrate.close()


def advised(text: str) -> list[str]:
    (flags,) = re.findall(r"docker run ((?:--security-opt \S+?(?: |(?=;)))+)", text)
    return flags.split()


def test_in_a_default_container_it_is_denied_and_the_flags_that_are_printed_allow_it(
    container: Callable[..., dict[str, Any]],
) -> None:
    denied = container()["error"]
    assert "its seccomp filter refuses new namespaces and mounts" in denied
    flags = advised(denied)
    assert flags
    allowed = container(*flags)
    assert allowed.get("text", allowed).splitlines()[-1] == "made"
    assert "users" not in allowed["isolates"]  # without CAP_SYS_ADMIN root inside is the container's root


def test_each_flag_is_needed(container: Callable[..., dict[str, Any]]) -> None:
    """The least change: without either of them it is denied, and the text names what is still missing."""
    for flag in ("seccomp=unconfined", "systempaths=unconfined"):
        assert "error" in container("--security-opt", flag)
    assert "its /proc is masked" in container("--security-opt", "seccomp=unconfined")["error"]


def test_an_ordinary_user_of_a_container_with_these_flags(container: Callable[..., dict[str, Any]]) -> None:
    flags = advised(container()["error"])
    seen = container(*flags, "--user", "1000:1000", "-e", "HOME=/tmp")
    assert seen["text"].splitlines()[-1] == "made"
    assert not seen["users"]
