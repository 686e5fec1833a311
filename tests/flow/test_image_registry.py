"""An image of 130 layers that do all that layers can, pushed to a real registry, pulled, and lived in."""

import asyncio
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from excise import Sandbox, Spec
from excise.cli.entry import main
from excise.registry import make
from excise.storage.layers.jobs import Remove
from excise.storage.layers.store import LayerStore
from excise.storage.layers.workers import Workers
from excise.storage.oci.pull import pull
from oci_image import Built, awkward, build, programs, push

LAYERS = 130


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory, must_work: Callable[[str, str], None]) -> Generator[str]:
    """A docker-registry on loopback; its address."""
    program = shutil.which("docker-registry")
    if program is None:
        must_work("docker-registry", "it is not installed: apt-get install docker-registry")
        raise AssertionError
    place = tmp_path_factory.mktemp("registry")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = place / "config.yml"
    config.write_text(
        f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {place}/data}}}}\n"
        f"http: {{addr: '127.0.0.1:{port}'}}\n"
    )
    with subprocess.Popen([program, "serve", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            wait_for(port)
            yield f"127.0.0.1:{port}"
        finally:
            server.terminate()


def wait_for(port: int) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, "the registry did not come up"
        else:
            return


@pytest.fixture(scope="module")
def image() -> Built:
    return build(
        [programs("/usr/bin/true"), *awkward(LAYERS - 1)],
        Env=["GREETING=hello", "PATH=/usr/bin"],
        WorkingDir="/srv/app",
        User="joe",
    )


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """An empty cache; where live sandboxes are stays as it is for all tests."""
    path = tmp_path / "home"
    monkeypatch.setenv("EXCISE_HOME", str(path))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    yield path
    if path.exists():
        asyncio.run(discard(path))


async def discard(path: Path) -> None:
    async with Workers(1) as workers:
        await workers.run(Remove(str(path)))


@pytest.mark.usefixtures("home")
def test_it_is_pulled_verified_and_lived_in(registry: str, image: Built, runs_here: Callable[[str], None]) -> None:
    runs_here("namespace")
    push(image, f"http://{registry}", "awkward", "1")
    name = f"{registry}/awkward:1"
    assert main(["image", "pull", name, "-j", "3"]) == 0
    assert main(["image", "verify"]) == 0

    async def look() -> None:
        substrate = make("namespace")
        try:
            has_users = (await substrate.probe()).users
        finally:
            await substrate.close()
        if has_users:
            async with Sandbox("namespace", Spec(image=name)) as box:
                with pytest.raises(PermissionError):  # joe, as the image says, may not enter
                    await box.read("/opaque/upper")
        async with Sandbox("namespace", Spec(image=name, user="root" if has_users else None)) as box:
            assert await box.read("/changed") == str(LAYERS - 23).encode()
            assert await box.read("/was-directory") == b"now a file"
            assert await box.read("/opaque/upper") == b"upper"
            assert await box.read("/across") == b"linked content"
            assert await box.read(f"/n/{LAYERS - 23}") == b"n"
            for hidden in ("/opaque/lower", "/d/hidden", "/whole/lower"):
                with pytest.raises(FileNotFoundError):
                    await box.read(hidden)

    asyncio.run(look())
    assert main(["image", "rm", name]) == 0
    assert LayerStore().held() == ()


def test_what_was_pulled_stays_and_only_the_rest_comes(registry: str, image: Built, home: Path) -> None:
    push(image, f"http://{registry}", "awkward", "1")
    most = build(image.tars[:100])
    push(most, f"http://{registry}", "awkward", "most")
    asyncio.run(pull([f"{registry}/awkward:most"]))
    (one,) = asyncio.run(pull([f"{registry}/awkward:1"]))
    assert one.account is not None
    assert (one.account.layers, one.account.layers_there) == (LAYERS, 100)
    assert one.account.read_bytes == sum(map(len, image.blobs[100:]))
    assert not list(home.glob("layers/.*"))
    assert main(["image", "gc", "--keep", "0"]) == 0
