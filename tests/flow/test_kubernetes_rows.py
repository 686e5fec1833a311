"""Pods in the meter, on a real cluster: a start's stages add up, what no node has is pulled, and a full node says so."""

import asyncio
import shutil
from collections.abc import Callable, Generator
from itertools import pairwise
from pathlib import Path

import pytest

from a_cluster import forget, own_namespace
from excise.api import connect
from excise.errors import CapacityError
from excise.meter.places import Recreate
from excise.meter.records import STAGES
from excise.meter.trial import roll_out
from excise.sandbox import Sandbox
from excise.spec import Limits, Spec
from excise.storage.fresh import FreshImages
from excise.trace import Span
from excise.workloads.t0 import T0
from oci_image import programs

PATHS = ("kubernetes", "kubernetes+guest")


@pytest.fixture(scope="module")
def namespace(runs_here: Callable[[str], None]) -> Generator[str]:
    runs_here("kubernetes")
    with own_namespace() as name:
        yield name


def adds_up(spans: tuple[Span, ...], *, pulled: bool) -> None:
    """The stages lie inside of create, one after the other, and ready goes on where it ends."""
    (create,) = (one for one in spans if one.name == "create")
    (ready,) = (one for one in spans if one.name == "ready")
    inner = [one for one in spans if one.name in STAGES and one is not ready]
    assert {one.name for one in inner} == {"accepted", "scheduled", "started"} | ({"pulled"} if pulled else set[str]())
    assert create.start_ns <= inner[0].start_ns
    for before, after in pairwise(inner):
        assert before.end_ns == after.start_ns
    assert inner[-1].end_ns <= create.end_ns == ready.start_ns


@pytest.mark.parametrize("path", PATHS)
def test_a_rollouts_start_has_its_stages_with_the_image_there_and_without(
    namespace: str, path: str, tmp_path: Path, must_work: Callable[[str, str], None]
) -> None:
    if shutil.which("docker-registry") is None:
        must_work("docker-registry", "it is not installed: apt-get install docker-registry")
    root = tmp_path / "root.tar"
    names = ("sh", "sleep", "echo", "true", "cat", "head", "mv", "rm", "chmod", "stat")
    root.write_bytes(programs(*(f"/bin/{name}" for name in names)))

    async def scenario() -> None:
        images = FreshImages(str(root))
        try:
            name = await images.next()
            async with connect(f"{path}?namespace={namespace}") as substrate:
                for image, pulled in ((name, True), (name, False)):
                    found = await roll_out(Recreate(substrate, Spec(image=image)), T0())
                    assert found.failure is None
                    adds_up(found.spans, pulled=pulled)
            assert forget(name) == 1
        finally:
            await images.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("path", PATHS)
def test_a_full_node_says_so_to_whoever_holds_the_sandbox(namespace: str, path: str) -> None:
    """The cause is told before the caller's own deadline, which knows none."""

    async def scenario() -> None:
        async with connect(f"{path}?namespace={namespace}") as substrate:
            with pytest.raises(CapacityError, match=r"no node took the pod.*Insufficient cpu"):
                await Sandbox(substrate, Spec(limits=Limits(cpus=500)), wait_s=3).open()

    asyncio.run(scenario())
