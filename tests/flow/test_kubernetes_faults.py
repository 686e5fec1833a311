"""What a real cluster does to sandboxes, on both paths: every fault is typed, none is a task's result, and nothing is left."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path

import pytest

from a_cluster import Between, admin, as_kubeconfig, eventually, own_namespace, processes_of, registry
from excise.api import connect
from excise.errors import CapacityError, CreateError, SandboxLost, SpecError, SubstrateError
from excise.sandbox import Sandbox
from excise.spec import Limits, Spec
from excise.substrates.kubernetes import pod
from excise.substrates.kubernetes.api import Api
from excise.substrates.kubernetes.refusals import Unreachable
from oci_image import build, entry, programs, push, tar

PATHS = ("kubernetes", "kubernetes+guest")
DEADLINE_S = 60.0
SLACK_S = 20.0
MIB = 1 << 20


@pytest.fixture(scope="module")
def namespace(runs_here: Callable[[str], None]) -> Generator[str]:
    runs_here("kubernetes")
    with own_namespace() as name:
        yield name


async def refused(
    namespace: str, spec: Spec, error: type[Exception], says: str, *, deadline_s: float = DEADLINE_S, options: str = ""
) -> None:
    """On both paths at once: no sandbox is made, for this reason and within the deadline, and its pod is gone."""

    async def by(path: str) -> None:
        request = uuid.uuid4().hex
        begun = time.monotonic()
        async with connect(f"{path}?namespace={namespace}{options}") as substrate:
            with pytest.raises(error, match=says):
                await substrate.create(spec, deadline_s=deadline_s, lease_s=60, labels={}, request_id=request)
        assert time.monotonic() - begun < deadline_s + SLACK_S
        async with admin(namespace) as api:
            assert await api.get("pods", pod.name(request, "guest" if "+guest" in path else "exec")) is None

    await asyncio.gather(*(by(path) for path in PATHS))


# ---- no sandbox


def test_no_kubeconfig_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))

    async def scenario(path: str) -> None:
        async with connect(path) as substrate:
            await substrate.probe()

    for path in PATHS:
        with pytest.raises(SpecError, match=r"there is no kubeconfig.*set KUBECONFIG"):
            asyncio.run(scenario(path))


def test_nobody_at_the_address_is_named_in_time(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        '{"current-context":"c","contexts":[{"name":"c","context":{"cluster":"c"}}],'
        '"clusters":[{"name":"c","cluster":{"server":"https://127.0.0.1:1"}}]}'
    )

    async def scenario(path: str) -> None:
        async with connect(f"{path}?kubeconfig={config}") as substrate:
            with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1 .*start the cluster"):
                await substrate.create(Spec(), deadline_s=20, lease_s=60, labels={}, request_id="x")

    for path in PATHS:
        asyncio.run(scenario(path))


def test_a_token_that_nobody_knows_is_refused(namespace: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with admin(namespace) as api:
            (tmp_path / "config").write_text(json.dumps(as_kubeconfig(api, "made-up")))
        for path in PATHS:
            async with connect(f"{path}?kubeconfig={tmp_path}/config") as substrate:
                with pytest.raises(SubstrateError, match=r"does not know you \(401\).*sign in again"):
                    await substrate.probe()

    asyncio.run(scenario())


def test_a_full_node_says_so(namespace: str) -> None:
    spec = Spec(limits=Limits(cpus=500, memory_bytes=64 * MIB))
    asyncio.run(refused(namespace, spec, CapacityError, r"no node took the pod.*Insufficient cpu", deadline_s=3))


def test_a_quota_that_is_used_up_says_so(namespace: str) -> None:
    async def scenario() -> None:
        async with admin(namespace) as api:
            quota = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
            await api.create("resourcequotas", quota)
            try:

                async def counts() -> bool | None:
                    there = await api.get("resourcequotas", "none")
                    return bool(there and there.get("status", {}).get("hard")) or None

                await eventually(counts, "the quota does not count")
                await refused(namespace, Spec(), CapacityError, r"quota is used up.*exceeded quota: none")
            finally:
                await api.delete("resourcequotas", "none")

    asyncio.run(scenario())


def test_a_namespace_that_is_not_there_is_the_specs(namespace: str) -> None:
    async def scenario(path: str) -> None:
        async with connect(f"{path}?namespace={namespace}-not") as substrate:
            with pytest.raises(SpecError, match="there is no namespace"):
                await substrate.create(Spec(), deadline_s=20, lease_s=60, labels={}, request_id="x")

    for path in PATHS:
        asyncio.run(scenario(path))


# ---- pulls


class Images:
    """A registry behind a proxy, and images that no node has ever seen."""

    def __init__(self, port: int, between: Between) -> None:
        self.port = port
        self.between = between
        self._programs = programs("/bin/sh", "/usr/bin/true", "/usr/bin/sleep", "/usr/bin/cat")

    def fresh(self) -> str:
        """The name of a new image."""
        tag = uuid.uuid4().hex
        layer = tar(entry("unique", os.urandom(65536)))  # else a node that has the bytes under another name fetches none
        push(build([self._programs, layer], Env=["PATH=/usr/bin:/bin"]), f"http://127.0.0.1:{self.port}", "small", tag)
        return f"localhost:{self.between.port}/small:{tag}"


@pytest.fixture(scope="module")
def images(
    namespace: str, tmp_path_factory: pytest.TempPathFactory, must_work: Callable[[str, str], None]
) -> Generator[Images]:
    """What the node has pulled of them is taken from it again."""
    from cluster.images import _ctr  # pyright: ignore[reportPrivateUsage]
    from cluster.places import places

    with registry(tmp_path_factory.mktemp("registry"), must_work) as port, Between(port) as between:
        yield Images(port, between)
    held = [name for name in _ctr(places(), "images", "list", "--quiet").split() if f"localhost:{between.port}/" in name]
    if held:
        _ctr(places(), "images", "remove", *held)


async def wrong_image(namespace: str, images: Images) -> None:
    name = f"localhost:{images.between.port}/small:none"
    says = r"small:none' cannot be pulled \(.*not found.*name one that is there"
    await refused(namespace, Spec(image=name), SpecError, says)


async def image_that_may_not_be_pulled(namespace: str, images: Images) -> None:
    says = "does not hold the image .* may not pull it"
    await refused(namespace, Spec(image=images.fresh()), SpecError, says, options="&pull_policy=Never")


async def pull_that_breaks_off(namespace: str, images: Images) -> None:
    with Between(images.port) as cutting:
        cutting.cut_after_bytes = 8192
        name = images.fresh().replace(f"localhost:{images.between.port}", f"localhost:{cutting.port}")
        await refused(namespace, Spec(image=name), CreateError, r"cannot be pulled \(Failed to pull.*try again")


# ---- no sandbox any more

Fault = Callable[[Api, Sandbox], Awaitable[object]]


async def lost(namespace: str, fault: Fault, says: str, *, options: str = "") -> None:
    """On both paths at once: an action that runs when the fault comes is SandboxLost, and so is the next."""

    async def by(path: str) -> None:
        async with (
            connect(f"{path}?namespace={namespace}{options}") as substrate,
            Sandbox(substrate, ttl_s=120) as box,
            admin(namespace) as api,
        ):
            running = asyncio.ensure_future(box.run(["sleep", "300"]))
            await asyncio.sleep(0)
            await fault(api, box)
            async with asyncio.timeout(DEADLINE_S):
                for action in (running, box.run(["true"])):
                    with pytest.raises(SandboxLost, match=says):
                        await action

    await asyncio.gather(*(by(path) for path in PATHS))


def _name(box: Sandbox) -> str:
    return pod.split_id(box.id)[0]


async def evict(api: Api, box: Sandbox) -> None:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": _name(box)}}
    await api.request("POST", api.path("pods", f"{_name(box)}/eviction"), what="evict", body=body)


async def overfill(_: Api, box: Sandbox) -> None:
    await box.run("head -c 30000000 /dev/zero > /var/tmp/much")


async def delete(api: Api, box: Sandbox) -> None:
    await api.delete("pods", _name(box))


async def evicted(namespace: str, _: Images) -> None:
    await lost(namespace, evict, r"(pod was deleted \(EvictionByEvictionAPI\)|pod was evicted)")


async def overfull(namespace: str, _: Images) -> None:
    """By the kubelet, for its ephemeral storage."""
    await lost(namespace, overfill, r"evicted from its node: .*(ephemeral|storage)", options="&ephemeral_storage=10Mi")


async def deleted(namespace: str, _: Images) -> None:
    await lost(namespace, delete, "pod (was deleted|is gone)")


async def memory_full_of_files(namespace: str, _: Images) -> None:
    """What no kill frees. Whom the kernel takes first, the command that fills it or the guest, is its own choice."""
    address, spec = f"kubernetes+guest?namespace={namespace}", Spec(limits=Limits(memory_bytes=32 * MIB))
    async with connect(address) as substrate, Sandbox(substrate, spec, ttl_s=120) as box:
        with pytest.raises(SandboxLost, match=r"killed for lack of memory \(OOMKilled, its limit is"):
            await fill_memory(box)


async def fill_memory(box: Sandbox) -> None:
    assert not (await box.run("head -c 60000000 /dev/zero > /dev/shm/much")).ok
    await box.run(["true", "x" * (12 * MIB)])  # which the first process must take in


CLIENT = """
import asyncio, sys
from excise.api import connect
from excise.sandbox import Sandbox
async def main():
    async with connect(sys.argv[1]) as substrate:
        box = Sandbox(substrate, ttl_s=float(sys.argv[2]))
        await box.open()
        print(box.id, flush=True)
        await box.run("sleep 300 & sleep 300")
asyncio.run(main())
"""


async def killed_client(address: str, lease_s: float) -> str:
    """The pod of a client that made a sandbox and was killed."""
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENT, address, str(lease_s), stdout=asyncio.subprocess.PIPE
    )
    assert client.stdout is not None
    made = (await client.stdout.readline()).decode().strip()
    client.send_signal(signal.SIGKILL)
    await client.wait()
    assert made, "the client ended before it had a sandbox"
    return pod.split_id(made)[0]


async def killed_clients(namespace: str, _: Images) -> None:
    """Nobody collects before both have their sandbox: the first's lease is over before its pod is ready."""
    plain, guests = (f"{path}?namespace={namespace}" for path in ("kubernetes", "kubernetes+guest"))
    pods = await asyncio.gather(
        killed_client(plain, lease_s=0.5),
        killed_client(guests, lease_s=600.0),  # a guest ends with its client, whatever its lease
    )
    async with connect(plain) as of_leases, connect(guests) as of_guests, admin(namespace) as api:

        async def taken() -> bool | None:
            await asyncio.gather(of_leases.collect(), of_guests.collect())
            return not [name for name in pods if await api.get("pods", name) is not None] or None

        await eventually(taken, "they were not collected")


Scenario = Callable[[str, Images], Awaitable[None]]
FAULTS: dict[str, Scenario] = {
    "an image that is not there": wrong_image,
    "an image that may not be pulled": image_that_may_not_be_pulled,
    "a pull that breaks off": pull_that_breaks_off,
    "evicted by the API": evicted,
    "evicted for its storage": overfull,
    "deleted by somebody": deleted,
    "memory full of files": memory_full_of_files,
    "killed clients": killed_clients,
}


@pytest.fixture(scope="module")
def ended(namespace: str, images: Images) -> dict[str, BaseException | None]:
    """How each fault ended, all at once: a kubelet takes its time over every one of them."""

    async def all_at_once() -> list[BaseException | None]:
        return await asyncio.gather(*(fault(namespace, images) for fault in FAULTS.values()), return_exceptions=True)

    return dict(zip(FAULTS, asyncio.run(all_at_once()), strict=True))


Ended = dict[str, BaseException | None]


def _told(ended: Ended, *faults: Scenario) -> None:
    """Each of these ended as it should."""
    wrong = [error for name, error in ended.items() if FAULTS[name] in faults and error is not None]
    assert len([name for name in ended if FAULTS[name] in faults]) == len(faults)
    if wrong:
        raise wrong[0]


def test_images_that_do_not_come_are_told_apart(ended: Ended) -> None:
    _told(ended, wrong_image, image_that_may_not_be_pulled, pull_that_breaks_off)


def test_evicted_overfull_and_deleted_pods_are_lost(ended: Ended) -> None:
    _told(ended, evicted, overfull, deleted)


def test_a_pod_whose_memory_files_fill_is_lost(ended: Ended) -> None:
    _told(ended, memory_full_of_files)


def test_a_killed_clients_pods_are_collected(ended: Ended) -> None:
    _told(ended, killed_clients)


def test_a_pull_that_takes_too_long_says_so(namespace: str, images: Images) -> None:
    images.between.delay_s = 30.0
    try:
        says = r"made no sandbox in 8 s.*image is being pulled: .*small:"
        asyncio.run(refused(namespace, Spec(image=images.fresh()), CreateError, says, deadline_s=8))
    finally:
        images.between.delay_s = 0.0


async def _lost_both(boxes: list[Sandbox], kill: Callable[[], None]) -> None:
    running = [asyncio.ensure_future(box.run(["sleep", "300"])) for box in boxes]
    await asyncio.gather(*(box.run("true") for box in boxes))
    kill()
    async with asyncio.timeout(DEADLINE_S):
        then = [box.run(["true"]) for box in boxes]
        for ended in await asyncio.gather(*running, *then, return_exceptions=True):
            assert isinstance(ended, SandboxLost)


def test_a_killed_kubelet_loses_its_sandboxes_and_leaves_nothing(namespace: str) -> None:
    """Both at once, for it takes its time; then the kubelet is started again, and takes their containers away."""
    cluster = Path(__file__).parents[2]
    made: list[str] = []

    async def both() -> None:
        async with (
            connect(f"kubernetes+guest?namespace={namespace}") as guest,
            connect(f"kubernetes?namespace={namespace}") as plain,
            Sandbox(guest, ttl_s=120) as one,
            Sandbox(plain, ttl_s=120) as other,
        ):
            made.extend(pod.split_id(box.id)[1] for box in (one, other))
            assert all(_running(uid) for uid in made)
            await _lost_both([one, other], lambda: os.kill(_record("kubelet"), signal.SIGKILL))

    try:
        asyncio.run(both())
    finally:
        subprocess.run([sys.executable, "-m", "cluster", "up"], check=True, timeout=120, cwd=cluster, stdout=subprocess.DEVNULL)

    async def scenario() -> None:
        async with connect(f"kubernetes?namespace={namespace}") as plain, Sandbox(plain, ttl_s=60) as box:
            assert (await box.run("echo back")).text == "back\n"

        async def clear() -> bool | None:
            return not any(_running(uid) or processes_of(uid) for uid in made) or None

        async with admin(namespace) as api:
            assert (await api.list("pods")).get("items") == []
        await eventually(clear, "the kubelet left containers of pods that were removed while it was away")

    asyncio.run(scenario())


def _running(uid: str) -> set[str]:
    """The containers of a pod that run on its node; what ended is swept away once a minute."""
    from cluster.images import _ctr  # pyright: ignore[reportPrivateUsage]
    from cluster.places import places

    of_pod = _ctr(places(), "containers", "list", "--quiet", f'labels."io.kubernetes.pod.uid"=={uid}')
    return set(of_pod.split()) & set(_ctr(places(), "tasks", "list", "--quiet").split())


def _record(part: str) -> int:
    """The pid of a part of the cluster, if it is the one that `make substrates` started."""
    from cluster.places import places
    from cluster.records import Record

    record = Record.read(places().records / f"{part}.json")
    assert record is not None
    assert record.runs()
    return record.pid
