"""The guest in a pod beyond the contract: who can end it, how it gets there and is reached, whom it runs as, what it leaves."""

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from a_cluster import admin, own_namespace
from excise.action import End, Exec, Shell
from excise.api import connect
from excise.errors import CreateError, SandboxLost, SpecError, Unsupported
from excise.guest.programs import guest_image, program
from excise.sandbox import Sandbox
from excise.spec import Secret, Spec
from excise.substrates.kubernetes import arrival, pod
from excise.substrates.kubernetes.guest_image import image_tar
from excise.substrates.kubernetes.options import Options
from oci_image import digest

LINKS = ("forward", "exec", "tcp")


def manifest(spec: Spec, **more: Any) -> dict[str, Any]:
    plain = pod.manifest(spec, Options(), labels={}, lease_s=1, request_id="r", client="c", made_by="m", path="guest")
    given = {"way": "init", "by": "forward", "image": "excise/guest:1", "pull_policy": None, "secret": "s" * 64, "root": False}
    return arrival.with_guest(plain, **{**given, **more})


def test_the_guest_is_copied_before_the_sandbox_and_is_its_pid_1() -> None:
    made = manifest(Spec(env={"TOKEN": "of the spec"}, secrets={"KEY": Secret("hidden")}))["spec"]
    first, only = made["initContainers"], made["containers"]
    assert [one["command"] for one in first] == [["/excise-guest", "-c", "/.excise/guest"]]
    assert [(one["command"], one["args"]) for one in only] == [(["/.excise/guest"], ["-f", "8701"])]
    assert first[0]["volumeMounts"] == only[0]["volumeMounts"] == [{"name": "excise-guest", "mountPath": "/.excise"}]
    assert first[0]["securityContext"] == only[0]["securityContext"]
    assert "of the spec" not in json.dumps(made)
    assert "hidden" not in json.dumps(made)


def test_a_link_by_exec_needs_no_secret_and_a_guest_by_exec_no_image() -> None:
    made = manifest(Spec(), way="exec", by="exec")["spec"]
    assert "initContainers" not in made
    assert "ssss" not in json.dumps(made)
    assert made["containers"][0]["args"] == ["-w", "/.excise/link"]


def test_only_a_specs_user_makes_the_guest_root() -> None:
    assert "runAsUser" not in manifest(Spec())["spec"]["containers"][0]["securityContext"]
    assert manifest(Spec(), root=True)["spec"]["containers"][0]["securityContext"]["runAsUser"] == 0


def test_the_guests_image_is_the_same_for_the_same_program(tmp_path: Path) -> None:
    import tarfile

    path = program("excise-guest")
    made = image_tar(path, "x86_64")
    assert made == image_tar(path, "x86_64")
    (tmp_path / "image.tar").write_bytes(made)
    with tarfile.open(tmp_path / "image.tar") as archive:
        files = {name: (archive.extractfile(name) or pytest.fail(name)).read() for name in archive.getnames()}
    (held,) = json.loads(files["manifest.json"])
    assert held["RepoTags"] == [guest_image("x86_64")]
    config = json.loads(files[held["Config"]])
    assert config["rootfs"]["diff_ids"] == [digest(files[name]) for name in held["Layers"]]
    assert path.read_bytes() in files[held["Layers"][0]]


# ---- with a cluster


@pytest.fixture(scope="module")
def namespace(runs_here: Callable[[str], None]) -> Generator[str]:
    runs_here("kubernetes+guest")
    with own_namespace() as name:
        yield name


@contextlib.asynccontextmanager
async def sandbox(namespace: str, spec: Spec | None = None, options: str = "") -> AsyncGenerator[Sandbox]:
    address = f"kubernetes+guest?namespace={namespace}{options}"
    async with connect(address) as substrate, Sandbox(substrate, spec or Spec(), ttl_s=120) as box:
        yield box


def test_however_it_arrives_and_is_reached_it_serves(namespace: str) -> None:
    async def serves(way: str, by: str) -> None:
        async with sandbox(namespace, options=f"&guest={way}&link={by}") as box:
            assert (await box.run(["pwd"])).text == "/\n"
            assert (await box.run(["cat", "/proc/1/cmdline"])).stdout.startswith(b"/.excise/guest\0-")
            names = {line.partition("=")[0] for line in (await box.run(["env"])).text.splitlines()}
            assert {"PATH", "HOSTNAME"} <= names
            assert names.isdisjoint(("PWD", "SHLVL", "_", "EXCISE_LINK_SECRET"))
            much = bytes(range(256)) * 20000
            await box.write("/tmp/much", much)
            assert await box.read("/tmp/much") == much

    async def scenario() -> None:
        await asyncio.gather(*(serves(way, by) for way in ("init", "exec") for by in LINKS))

    asyncio.run(scenario())


def test_no_signal_from_inside_ends_the_sandbox(namespace: str) -> None:
    async def scenario() -> None:
        async with sandbox(namespace) as box:
            for script in ("kill -9 -1", "pkill -9 -f excise", "kill -9 1; kill 1"):
                await box.run(Shell(script, timeout_s=20))
                assert (await box.run(Shell("echo alive", timeout_s=20))).stdout == b"alive\n"
            for path in ("/proc/1/mem", "/proc/1/maps", "/proc/1/environ"):
                seen = await box.run(Shell(f"head -c 1 {path} && echo read", timeout_s=20))
                assert b"read" not in seen.stdout, path

    asyncio.run(scenario())


def test_by_exec_root_can_end_its_own_link_and_that_is_a_loss(namespace: str) -> None:
    """The process that gave the link away can be killed: the runtime ends the stream then. It is told, and never a result."""

    async def scenario() -> None:
        async with sandbox(namespace, options="&link=exec") as box:
            ended = await asyncio.gather(
                box.run(["sleep", "300"], user="nobody"), box.run("kill -9 -1"), return_exceptions=True
            )
            if not isinstance(ended[0], SandboxLost):  # killed, and told so before the stream ended
                with pytest.raises(SandboxLost):
                    await box.run(["sleep", "300"])

    asyncio.run(scenario())


def test_others_cannot_speak_to_a_guest_that_listens(namespace: str) -> None:
    """Not even before its client does: only who knows the secret is served. Then it listens no more."""

    async def scenario() -> None:
        async with sandbox(namespace, options="&link=tcp") as box, admin(namespace) as api:
            there = await api.get("pods", pod.split_id(box.id)[0])
            assert there is not None
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(there["status"]["podIP"], arrival.PORT)
            seen = await box.run("cat /proc/1/environ | tr '\\0' '\\n'; env")
            assert "EXCISE_LINK_SECRET" not in seen.text

    asyncio.run(scenario())


def test_actions_choose_their_user_where_the_spec_has_one(namespace: str) -> None:
    async def scenario() -> None:
        async with sandbox(namespace, Spec(user="nobody")) as box:
            assert (await box.run(["id", "-un"])).text == "nobody\n"
            assert (await box.run(Exec(("id", "-un"), user="root"))).text == "root\n"

    asyncio.run(scenario())


def test_an_image_of_roots_is_refused_by_a_restricted_pod(namespace: str) -> None:
    async def scenario() -> None:
        async with sandbox(namespace, options="&security=restricted"):
            raise AssertionError("it was made")

    with pytest.raises(SpecError, match=r"runAsNonRoot and image will run as root"):
        asyncio.run(scenario())


def test_a_second_client_cannot_have_the_sandbox_of_a_request(namespace: str) -> None:
    terms: dict[str, Any] = {"deadline_s": 30.0, "lease_s": 120.0, "labels": {}, "request_id": uuid.uuid4().hex}

    async def scenario() -> None:
        address = f"kubernetes+guest?namespace={namespace}"
        async with connect(address) as mine, connect(address) as theirs:
            handle = await mine.create(Spec(), **terms)
            try:
                assert await mine.create(Spec(), **terms) is handle
                with pytest.raises(CreateError, match="another client"):
                    await theirs.create(Spec(), **terms)
                assert (await handle.run(Exec(("true",)))).end is End.EXITED
                with pytest.raises(Unsupported):
                    await mine.attach(handle.id)
            finally:
                await handle.close()

    asyncio.run(scenario())
