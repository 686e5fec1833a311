"""An image the Docker daemon holds comes with its files, ENV, WORKDIR and USER, and leaves nothing behind."""

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import aiodocker
import pytest

from excise.errors import SpecError, SubstrateError
from excise.storage.image import resolve
from excise.storage.oci import daemon

from .conftest import member, write_tar

T = TypeVar("T")
CHANGES = ["ENV GREETING=hello=world", "ENV EMPTY=", "WORKDIR /srv/app", "USER 1000:1000"]


def with_docker(use: Callable[[aiodocker.Docker], Awaitable[T]]) -> T:
    async def main() -> T:
        async with daemon._connected() as docker:
            return await use(docker)

    return asyncio.run(main())


@pytest.fixture
def image(tmp_path: Path, must_work: Callable[[str, str], None]) -> Iterator[str]:
    """A tiny image of our own, imported into the daemon and removed again."""
    name = f"excise-test-{uuid.uuid4().hex[:12]}"
    tar = write_tar(tmp_path / "x.tar", (member("etc/name", uid=12), b"held"), (member("bin/tool", mode=0o4755), b"tool"))

    async def put(docker: aiodocker.Docker) -> None:
        await docker._check_version()
        query = [("fromSrc", "-"), ("repo", name), *(("changes", change) for change in CHANGES)]
        async with docker.session.post(
            docker._canonicalize_url("images/create"), params=query, data=tar.read_bytes()
        ) as answer:
            assert answer.status == 200, await answer.text()

    try:
        with_docker(lambda docker: docker.version())
    except SubstrateError as error:
        must_work("docker", str(error))
    with_docker(put)
    yield name
    with_docker(lambda docker: docker.images.delete(name, force=True))


@pytest.mark.usefixtures("home")
def test_it_comes_with_its_files_and_its_config(image: str) -> None:
    found = asyncio.run(resolve(image))
    assert (found.root / "etc/name").read_text() == "held"
    assert (found.root / "srv/app").is_dir()
    assert (found.root / "proc").is_dir()
    assert found.env["GREETING"] == "hello=world"
    assert found.env["EMPTY"] == ""
    assert "/usr/bin" in found.env["PATH"]
    assert (found.name, found.workdir, found.user) == (image, "/srv/app", "1000:1000")
    assert found.digest.startswith("sha256:")
    assert found.tar is None
    assert {path.name for path in found.root.parent.iterdir()} == {"image.json", "root"}
    (found.root / "seen").touch()
    assert (asyncio.run(resolve(f"{image}:latest")).root / "seen").exists()


def test_cancelled_while_it_is_saved_nothing_is_left(image: str, home: Path) -> None:
    async def main() -> None:
        task = asyncio.create_task(resolve(image))
        while not list(home.glob(".save-*/image.tar")):
            assert not task.done()
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert not list(home.glob(".save-*"))
    assert not list(home.glob("images/*"))


def test_cancelled_at_any_moment_it_leaves_nothing(image: str, home: Path) -> None:
    async def main(turns: int) -> None:
        task = asyncio.create_task(resolve(image))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    for turns in (1, 10, 20, 40, 80, 160, 320, 640):
        asyncio.run(main(turns))
        assert not [*home.glob("images/.making-*"), *home.glob("layers/.making-*"), *home.glob(".save-*")]


@pytest.mark.usefixtures("home", "image")
@pytest.mark.parametrize("name", ["excise-no-such-image:1", "UPPER", "a b", "x/../../containers", ""])
def test_an_image_nobody_holds_is_one_sentence(name: str) -> None:
    with pytest.raises(SpecError, match=r"run `excise image pull .*`, or use host, excise/base, a root file system's tar"):
        asyncio.run(resolve(name))


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("address", ["unix:///nonexistent/docker.sock", "tcp://127.0.0.1:1", "nonsense"])
def test_no_daemon_is_one_sentence(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", address)
    with pytest.raises(SubstrateError, match="no Docker daemon answers") as failed:
        asyncio.run(resolve("python"))
    assert "\n" not in str(failed.value)
