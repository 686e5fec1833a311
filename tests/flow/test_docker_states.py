"""Snapshots of containers beyond the contract: what is in their images, what is left of them, what a daemon does to them."""

import asyncio
import json
import subprocess
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from excise.action import Exec, Read, Shell, Write
from excise.errors import SandboxLost, SpecError, Unsupported
from excise.registry import make
from excise.sandbox import Sandbox
from excise.spec import Limits, Mount, Secret, Spec, Step
from excise.substrate import Snapshot, Substrate
from excise.substrates.docker import DockerGuestSubstrate, DockerSubstrate, snapshots
from excise.substrates.docker.changes import told
from excise.substrates.docker.container import LABELS, LEASE, SANDBOX, SNAPSHOT, Prepared, again, config, listed
from excise.trace import Trace, recording

WORKDIR = "/work"
ADDRESSES = ("docker", "docker+guest")
Connected = DockerSubstrate | DockerGuestSubstrate


# ---- without a daemon


def inspected(**changes: Any) -> dict[str, Any]:
    spec = Spec(limits=Limits(memory_bytes=1 << 30, pids=64), mounts=(Mount("/data", "/data"),), network="open")
    made = config(spec, Prepared(reference="x"), labels={"a": "b"}, lease_s=10, request_id="r", runtime="runsc")
    host = made.pop("HostConfig")
    return {"Name": "/excise-r", "Config": {**made, "Hostname": "h", "Image": "x"}, "HostConfig": host, **changes}


def test_the_next_container_is_as_the_one_before_on_another_image() -> None:
    before = inspected()
    name, made = again(before, "excise/snapshot:s", "first-id")
    assert made["Image"] == "excise/snapshot:s"
    assert made["HostConfig"] == before["HostConfig"]
    assert (made["Entrypoint"], made["Hostname"]) == (before["Config"]["Entrypoint"], "h")
    assert made["Labels"] == {**before["Config"]["Labels"], SANDBOX: "first-id"}
    assert name.startswith("excise-r.life-")
    assert again({**before, "Name": f"/{name}"}, "i", "first-id")[0].count(".life-") == 1


def test_a_renewed_lease_goes_with_the_sandbox() -> None:
    name, made = again(inspected(Name="/excise-r.life-ab.until-99.500"), "i", "first-id")
    assert made["Labels"][LEASE] == "99.500"
    assert "until" not in name


def test_a_sandbox_is_listed_by_its_own_id_and_labels() -> None:
    labels = {**inspected()["Config"]["Labels"], SANDBOX: "first-id"}
    entry = listed({"Id": "second", "Labels": labels, "Names": [], "Created": 0})
    assert (entry.id, entry.labels) == ("first-id", {"a": "b"})
    assert listed({"Id": "plain", "Labels": {LABELS: "{}"}, "Names": [], "Created": 0}).id == "plain"


def test_no_label_of_a_snapshots_sandbox_is_inherited() -> None:
    """A container has every label of its image that it does not bring itself."""
    image = {**inspected()["Config"]["Labels"], SANDBOX: "first-id", SNAPSHOT: "s"}
    child = config(Spec(), Prepared(reference="x"), labels={}, lease_s=1, request_id="other", runtime=None)["Labels"]
    merged = {**image, **child}
    assert listed({"Id": "child", "Labels": merged, "Names": [], "Created": 0}).labels == {}
    assert (merged[SANDBOX], merged[SNAPSHOT]) == ("", "")


def test_mounts_the_daemons_own_files_and_tmp_are_no_changes() -> None:
    reported = [
        {"Path": path, "Kind": kind}
        for path, kind in (("/tmp/x", 1), ("/etc/hosts", 0), ("/mnt", 1), ("/mnt/in", 1), ("/mnt/in/file", 1), ("/mnt2", 1))
    ]
    assert told([*reported, {"Path": "/gone", "Kind": 2}], ("/mnt/in",)) == {"/mnt2": "added", "/gone": "deleted"}


# ---- with a daemon


@pytest.fixture(params=ADDRESSES)
def address(request: pytest.FixtureRequest, runs_here: Callable[[str], None]) -> str:
    runs_here(request.param)
    return request.param


@asynccontextmanager
async def sandbox(substrate: Substrate, start: Spec | Snapshot | None = None, **terms: Any) -> AsyncGenerator[Sandbox]:
    async with Sandbox(substrate, start if start is not None else Spec(), ttl_s=600, **terms) as box:
        yield box


@asynccontextmanager
async def connected(address: str) -> AsyncGenerator[Any]:
    substrate = make(address)
    try:
        yield substrate
    finally:
        await substrate.close()


def docker(*words: str) -> str:
    return subprocess.run(["docker", *words], capture_output=True, text=True, check=True, timeout=120).stdout.strip()


def image_ids(snapshot: Snapshot) -> list[str]:
    """The images a snapshot is in, by name or without."""
    return docker("images", "-aq", "--filter", f"label={SNAPSHOT}={snapshot.id}").split()


def containers(label: str) -> list[str]:
    return docker("ps", "-aq", "--filter", f"label={label}").split()


def test_another_client_starts_from_a_kept_snapshot(address: str) -> None:
    async def scenario() -> None:
        spec = Spec(secrets={"TOKEN": Secret("a-hidden-word")}, env={"PLAIN": "a-plain-word"})
        async with connected(address) as first, sandbox(first, spec) as box:
            await box.write("file", "kept")
            if address == "docker+guest":
                await box.run("export COLOUR=red SAME=$TOKEN; cd /etc", session="main")
            kept = await box.snapshot(keep_s=600)
            short = await box.snapshot(keep_s=0.001)
        async with connected(address) as second:
            try:
                found = {one.id: one for one in await second.snapshots()}
                assert short.id not in found
                listed = found[kept.id]
                assert (listed.spec, listed.sessions) == (Spec(), kept.sessions)
                assert 0 < (listed.lease_s or 0) <= 600
                assert listed.size_bytes == kept.size_bytes
                shown = docker("image", "inspect", f"excise/snapshot:{kept.id}")
                assert "a-hidden-word" not in shown
                assert "a-plain-word" not in shown
                async with sandbox(second, listed) as again:
                    assert await again.read("file") == b"kept"
                    if address == "docker+guest":
                        assert (await again.run("echo $PWD $COLOUR", session="main")).text == "/etc red\n"
            finally:
                await second.discard(kept)
                await second.discard(short)
            assert kept.id not in {one.id for one in await second.snapshots()}

    asyncio.run(scenario())


def test_a_reset_keeps_the_sandboxs_id_limits_network_and_labels(address: str) -> None:
    nonce = uuid.uuid4().hex
    spec = Spec(limits=Limits(memory_bytes=256 << 20, pids=100), network="none", env={"A": "a"})

    async def scenario() -> None:
        async with connected(address) as substrate, sandbox(substrate, spec, labels={"mine": nonce}) as box:
            before = box.id
            snapshot = await box.snapshot()
            await box.renew(5000)
            await box.reset(snapshot)
            assert box.id == before
            old = subprocess.run(["docker", "inspect", before], capture_output=True, check=False, timeout=60).stdout
            assert not any(one["State"]["Running"] for one in json.loads(old)), "the old container's processes live on"
            assert (await box.run("echo $A; cat /etc/hostname")).stdout.decode().split() == ["a", before[:12]]
            (there,) = [json.loads(docker("inspect", one))[0] for one in containers(f"{SANDBOX}={before}")]
            assert (there["HostConfig"]["Memory"], there["HostConfig"]["PidsLimit"]) == (256 << 20, 100)
            assert there["HostConfig"]["NetworkMode"] == "none"
            assert json.loads(there["Config"]["Labels"][LABELS]) == {"mine": nonce}
            assert float(there["Config"]["Labels"][LEASE]) > time.time() + 4000
            await substrate.discard(snapshot)
        assert image_ids(snapshot) == []
        assert containers(f"{SANDBOX}={before}") == []

    asyncio.run(scenario())


def test_a_secret_is_in_no_layer_and_no_configuration_of_a_snapshot(address: str, tmp_path: Path) -> None:
    secret = uuid.uuid4().hex
    spec = Spec(secrets={"TOKEN": Secret(secret)})

    async def scenario() -> None:
        async with connected(address) as substrate, sandbox(substrate, spec) as box:
            assert (await box.run("printf %s $TOKEN")).text == secret
            snapshot = await box.snapshot()
            try:
                docker("save", "-o", str(tmp_path / "saved.tar"), f"excise/snapshot:{snapshot.id}")
            finally:
                await substrate.discard(snapshot)
        saved = (tmp_path / "saved.tar").read_bytes()
        assert snapshot.id.encode() in saved
        assert secret.encode() not in saved

    asyncio.run(scenario())


def test_a_fork_has_its_images_user_directory_and_environment(address: str) -> None:
    name = f"excise-test-{uuid.uuid4().hex}"

    async def scenario() -> None:
        async with connected(address) as substrate, sandbox(substrate, Spec(image="excise/base")) as box:
            saved = await box.snapshot()
        try:
            made = docker("create", f"excise/snapshot:{saved.id}", "true")
            docker("commit", "-c", "USER 12:34", "-c", "WORKDIR /var", "-c", "ENV A=b", made, name)
            docker("rm", made)
            question = 'id -u; id -g; pwd; echo "$A"'
            async with connected(address) as substrate, sandbox(substrate, Spec(image=name)) as box:
                assert (await box.run(question)).text.split() == ["12", "34", "/var", "b"]
                async with box.fork(1) as (child,):
                    assert (await child.run(question)).text.split() == ["12", "34", "/var", "b"]
                    async with child.fork(1) as (grandchild,):
                        assert (await grandchild.run(question)).text.split() == ["12", "34", "/var", "b"]
        finally:
            docker("rmi", name)
            async with connected(address) as substrate:
                await substrate.discard(saved)

    asyncio.run(scenario())


def test_what_is_mounted_in_tmp_is_not_emptied(address: str, tmp_path: Path) -> None:
    (tmp_path / "given").write_text("the host's")
    spec = Spec(mounts=(Mount(str(tmp_path), "/tmp/shared", read_only=False),))

    async def scenario() -> None:
        async with connected(address) as substrate, sandbox(substrate, spec) as box:
            await box.write("/tmp/own", b"x")
            await box.write("/tmp/..odd", b"x")
            snapshot = await box.snapshot()
            await box.reset(snapshot)
            assert [entry.name for entry in await box.list("/tmp")] == ["shared"]
            await substrate.discard(snapshot)

    asyncio.run(scenario())
    assert (tmp_path / "given").read_text() == "the host's"


def test_a_paused_sandbox_is_reset_and_runs(address: str) -> None:
    async def scenario() -> None:
        async with connected(address) as substrate, sandbox(substrate) as box:
            snapshot = await box.snapshot()
            await box.pause()
            await box.reset(snapshot)
            assert (await box.run("echo runs")).text == "runs\n"
            await substrate.discard(snapshot)

    asyncio.run(scenario())


def test_a_snapshot_whose_image_was_removed_is_a_sentence_and_the_sandbox_lives_on(address: str) -> None:
    async def scenario() -> None:
        async with connected(address) as substrate, sandbox(substrate) as box:
            await box.write("kept", b"here")
            snapshot = await box.snapshot()
            docker("rmi", f"excise/snapshot:{snapshot.id}")
            with pytest.raises(SpecError, match=r"no snapshot .* take another"):
                await box.reset(snapshot)
            with pytest.raises(SpecError, match=r"no snapshot .* take another"):
                async with sandbox(substrate, snapshot):
                    pass
            assert await box.read("kept") == b"here"
            await substrate.discard(snapshot)

    asyncio.run(scenario())


def test_a_snapshot_that_was_discarded_under_a_sandbox_goes_with_it(address: str) -> None:
    async def scenario() -> None:
        async with connected(address) as substrate, sandbox(substrate) as box:
            first = await box.snapshot()
            async with sandbox(substrate, first) as child:
                await child.write("more", b"x")
                second = await child.snapshot()
                assert second.parent == first.id
                await substrate.discard(first)
                await substrate.discard(first)
                assert image_ids(first) != []
                await substrate.discard(second)
                assert image_ids(second) == []
            assert image_ids(first) == []

    asyncio.run(scenario())


def test_a_snapshot_that_a_later_one_is_made_of_goes_with_that(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MAKING_S", 0.0)

    async def scenario() -> None:
        async with connected(address) as substrate, sandbox(substrate) as box:
            first = await box.snapshot()
            await box.reset(first)
            second = await box.snapshot()
            await box.reset(second)
            third = await box.snapshot()
            await substrate.discard(first)
            await substrate.discard(second)
        assert image_ids(first) != []
        async with connected(address) as other:
            await other.discard(third)
            assert {first.id, second.id} <= set(await other.collect())  # it was another client that discarded them
            assert [image_ids(one) for one in (first, second, third)] == [[], [], []]

    asyncio.run(scenario())


def test_gc_spares_what_another_client_is_committing(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon makes an image, and then gives it its name."""
    name = uuid.uuid4().hex

    async def scenario() -> None:
        async with connected(address) as other, sandbox(other) as box:
            labels = f"LABEL {SNAPSHOT}={name} {LEASE}={time.time() + 600:.3f}"
            image = docker("commit", "--change", labels, box.id).strip()
            assert name not in await other.collect()
            assert docker("images", "-aq", "--no-trunc", "--filter", f"label={SNAPSHOT}={name}").split() == [image]
            monkeypatch.setattr(snapshots, "MAKING_S", 0.0)
            assert name in await other.collect()

    asyncio.run(scenario())


def test_snapshots_that_are_discarded_at_once_are_all_gone(address: str) -> None:
    """Each discard sweeps up after the others: one inspects what another is removing."""

    async def scenario() -> None:
        async with connected(address) as substrate, sandbox(substrate) as box:
            taken: list[Snapshot] = []
            for number in range(5):
                await box.write("file", str(number))
                taken.append(await box.snapshot())
                if number < 4:
                    await box.reset(taken[-1])
            await box.close()
            await asyncio.gather(*(substrate.discard(one) for one in taken))
            await substrate.discard(taken[0])
            assert [image_ids(one) for one in taken] == [[]] * 5

    asyncio.run(scenario())


def test_discarding_the_later_of_two_takes_the_earlier_along(address: str) -> None:
    async def scenario() -> None:
        async with connected(address) as substrate:
            async with sandbox(substrate) as box:
                first = await box.snapshot()
                await box.reset(first)
                second = await box.snapshot()
                await substrate.discard(first)
            assert image_ids(first) != []
            await substrate.discard(second)
            assert [image_ids(one) for one in (first, second)] == [[], []]

    asyncio.run(scenario())


def test_gc_takes_snapshots_whose_lease_ran_out_and_spares_those_in_use(address: str) -> None:
    async def scenario() -> None:
        async with connected(address) as substrate, sandbox(substrate) as box:
            kept = await box.snapshot()
            await box.renew(0.01)
            over, used = await box.snapshot(), await box.snapshot()
            await box.renew(600)
            async with sandbox(substrate, used) as child:
                taken = await substrate.collect()
                assert over.id in taken
                assert not {kept.id, used.id} & set(taken)
                assert (await child.run("true")).ok
            await substrate.discard(kept)
            assert used.id in await substrate.collect()
        assert [image_ids(one) for one in (kept, over, used)] == [[], [], []]

    asyncio.run(scenario())


def test_diff_compares_with_a_sandboxs_own_start_only(address: str) -> None:
    spec = Spec(steps=(Step("made", (Shell("echo made > made"),)),))

    async def scenario() -> None:
        async with connected(address) as substrate, sandbox(substrate, spec) as box:
            with pytest.raises(Unsupported, match=r"steps .* fork"):
                await box.diff()
            async with box.fork(1) as (child,):
                assert await child.diff() == ()
                await child.run("echo changed > made")
                (change,) = await child.diff()
                assert (change.path, change.kind) == (f"{WORKDIR}/made", "modified")
            snapshot = await box.snapshot()
            with pytest.raises(Unsupported, match="reset to the snapshot"):
                await box.diff(snapshot)
            await substrate.discard(snapshot)

    asyncio.run(scenario())


def test_the_removal_of_what_a_reset_left_is_in_no_trace(address: str) -> None:
    async def scenario() -> None:
        trace = Trace()
        async with connected(address) as substrate:
            with recording(trace):
                async with sandbox(substrate) as box:
                    snapshot = await box.snapshot()
                    await box.reset(snapshot)
            await substrate.discard(snapshot)
        assert [one.name for one in trace.spans if one.name != "setup"] == ["create", "ready", "snapshot", "reset", "cleanup"]

    asyncio.run(scenario())


def test_a_reset_that_is_cancelled_leaves_nothing(address: str) -> None:
    nonce = uuid.uuid4().hex

    async def scenario(after_s: float) -> None:
        async with connected(address) as substrate:
            terms: dict[str, Any] = {"deadline_s": 60.0, "lease_s": 600.0, "labels": {}, "request_id": f"{nonce}-{after_s}"}
            handle = await substrate.create(Spec(), **terms)
            await handle.ready()
            snapshot = await handle.snapshot()
            resetting = asyncio.ensure_future(handle.reset(snapshot))
            await asyncio.sleep(after_s)
            resetting.cancel()
            await asyncio.wait({resetting})
            with suppress(SandboxLost):  # in time, too late, or lost: never half-way
                assert (await handle.run(Exec(("true",)))).ok
            await handle.close()
            await substrate.discard(snapshot)
        assert image_ids(snapshot) == []
        assert containers(f"excise.request={nonce}-{after_s}") == []

    for after_s in (0.0, 0.02, 0.1, 0.2, 0.4):
        asyncio.run(scenario(after_s))


def test_a_snapshot_that_is_cancelled_leaves_no_image(address: str) -> None:
    async def scenario() -> None:
        async with connected(address) as substrate, sandbox(substrate) as box:
            await box.run("head -c 20000000 /dev/urandom > big")
            taking = asyncio.ensure_future(box.snapshot())
            await asyncio.sleep(0.05)
            before = docker("images", "-q", "--filter", f"label={SNAPSHOT}")
            taking.cancel()
            await asyncio.wait({taking})
            assert taking.cancelled()
            assert set(docker("images", "-q", "--filter", f"label={SNAPSHOT}").split()) <= set(before.split())
            assert (await box.run("echo runs")).text == "runs\n"

    asyncio.run(scenario())


def test_an_attached_sandbox_is_reset_and_found_again(runs_here: Callable[[str], None]) -> None:
    runs_here("docker")

    async def scenario() -> None:
        async with connected("docker") as mine, connected("docker") as other, sandbox(mine, labels={"a": "b"}) as box:
            there = await other.attach(box.id)
            await there.run(Write("file", b"before"))
            snapshot = await there.snapshot()
            await there.run(Write("file", b"after"))
            await there.reset(snapshot)
            assert there.id == box.id
            assert (await there.run(Read("file"))).stdout == b"before"
            third = await mine.attach(box.id)
            assert (third.id, (await third.run(Read("file"))).stdout) == (box.id, b"before")
            assert [entry.id for entry in await mine.list({"a": "b"})].count(box.id) == 1
            with pytest.raises(SandboxLost):
                await box.run("true")
            await there.close()
            await other.discard(snapshot)

    asyncio.run(scenario())
