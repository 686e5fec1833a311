"""An image the Docker daemon holds brings its ENV, WORKDIR and USER along, on every substrate alike."""

import asyncio
import os
import subprocess
from collections.abc import Callable, Generator

import pytest

from excise import Sandbox, Spec
from excise.storage.image import kind, remove, resolve

NAME = f"excise-test-config-{os.getpid()}:1"


def docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=True, timeout=120).stdout.strip()


@pytest.fixture(scope="module")
def image(runs_here: Callable[[str], None], must_work: Callable[[str, str], None]) -> Generator[str]:
    runs_here("docker")
    try:
        base = asyncio.run(resolve("excise/base"))
    except Exception as error:
        must_work("base", str(error))
        raise
    asyncio.run(in_daemon())
    container = docker("create", f"excise/base:{base.digest.removeprefix('sha256:')[:12]}", "true")
    try:
        changes = ["ENV GREETING=hello", "WORKDIR /srv/app", "USER 1815:1852"]
        docker("commit", *(word for change in changes for word in ("--change", change)), container, NAME)
    finally:
        docker("rm", container)
    try:
        yield NAME
    finally:
        asyncio.run(remove(NAME))
        docker("rmi", NAME)


async def in_daemon() -> None:
    """A first sandbox puts excise/base into the daemon."""
    async with Sandbox("docker", Spec(image="excise/base")):
        pass


@pytest.mark.parametrize("address", ["docker", "docker+guest", "chroot", "chroot+guest", "bubblewrap", "runc"])
def test_env_workdir_and_user_come_from_the_image(address: str, image: str, runs_here: Callable[[str], None]) -> None:
    runs_here(address)
    assert kind(image) == "docker"

    async def look() -> str:
        async with Sandbox(address, Spec(image=image)) as box:
            return (await box.run("echo $GREETING $(pwd) $(id -u):$(id -g)")).text

    assert asyncio.run(look()) == "hello /srv/app 1815:1852\n"


@pytest.mark.parametrize("address", ["docker", "docker+guest", "chroot", "chroot+guest"])
def test_the_spec_has_the_last_word(address: str, image: str, runs_here: Callable[[str], None]) -> None:
    runs_here(address)
    spec = Spec(image=image, env={"GREETING": "bye"}, workdir="/tmp/elsewhere", user="0")

    async def look() -> str:
        async with Sandbox(address, spec) as box:
            return (await box.run("echo $GREETING $(pwd) $(id -u)")).text

    assert asyncio.run(look()) == "bye /tmp/elsewhere 0\n"
