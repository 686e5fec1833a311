"""docs/kubernetes/namespace-in-pods*.yaml: sandboxes that a pod makes itself, with the flags that doctor asks for."""

import asyncio
import copy
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from a_cluster import admin, eventually, own_namespace
from excise.substrates.kubernetes.api import Api
from excise.substrates.kubernetes.events import is_started
from excise_image import put_on_node

DOCS = Path(__file__).parents[2] / "docs" / "kubernetes"
EXCISE = ("python3", "-c", "import sys; from excise.cli import main; sys.exit(main())")


@pytest.fixture(scope="module")
def namespace(runs_here: Callable[[str], None]) -> Generator[str]:
    """With the image on the node, as long as the tests need it."""
    from cluster.images import _ctr  # pyright: ignore[reportPrivateUsage]
    from cluster.places import places

    runs_here("kubernetes")
    image = put_on_node(lambda *words: _ctr(places(), *words))
    try:
        with own_namespace() as name:
            yield name
    finally:
        _ctr(places(), "images", "remove", image)


def template(name: str) -> dict[str, Any]:
    import yaml

    deployment = yaml.safe_load((DOCS / name).read_text())
    assert deployment["kind"] == "Deployment"
    made = copy.deepcopy(deployment["spec"]["template"]["spec"])
    made["restartPolicy"] = "Never"
    made["terminationGracePeriodSeconds"] = 0
    made["containers"][0]["imagePullPolicy"] = "Never"
    return made


async def said(api: Api, name: str, spec: dict[str, Any], *words: str) -> tuple[int | None, str]:
    """What Excise says inside such a pod, and how it exits."""
    await api.create("pods", {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
    try:

        async def running() -> bool | None:
            there = await api.get("pods", name)
            return (there is not None and is_started(there)) or None

        await eventually(running, f"the pod {name} does not run")
        stream = await api.exec(name, "worker", (*EXCISE, *words), stdin=False)
        text = b""
        while (frame := await stream.frame()) is not None:
            text += frame[1]
        stream.close()
        assert stream.ending is not None
        return stream.ending.exit_code, text.decode()
    finally:
        await api.delete("pods", name)


async def _has_user_namespaces(api: Api) -> bool:
    nodes = (await api.request("GET", "/api/v1/nodes", what="list nodes"))[1]["items"]
    handlers = [handler for node in nodes for handler in node["status"].get("runtimeHandlers") or ()]
    return any((handler.get("features") or {}).get("userNamespaces") for handler in handlers)


def test_a_pod_of_the_manifest_makes_sandboxes(namespace: str) -> None:
    async def scenario() -> None:
        async with admin(namespace) as api:
            which = "namespace-in-pods.yaml" if await _has_user_namespaces(api) else "namespace-in-pods-older.yaml"
            code, text = await said(api, "with", template(which), "run", "namespace", "--", "id", "-u")
            assert (code, text) == (0, "0\n")  # root of its own

    asyncio.run(scenario())


def test_without_the_flags_it_says_which_are_missing(namespace: str) -> None:
    """Of the manifest for older runtimes what is unusual is one flag; without it no sandbox is made, and that flag is named."""

    async def scenario() -> None:
        async with admin(namespace) as api:
            plain = template("namespace-in-pods-older.yaml")
            del plain["containers"][0]["securityContext"]["privileged"]
            code, text = await said(api, "without", plain, "run", "namespace", "--", "true")
            assert code != 0
            assert "this is a container, and its /proc is masked" in text
            assert "procMount Unmasked" in text

    asyncio.run(scenario())


def test_both_manifests_differ_in_the_flags_alone() -> None:
    newer, older = template("namespace-in-pods.yaml"), template("namespace-in-pods-older.yaml")
    assert newer.pop("hostUsers") is False
    assert newer["containers"][0].pop("securityContext") == {
        "procMount": "Unmasked",
        "seccompProfile": {"type": "Unconfined"},
    }
    assert older["containers"][0].pop("securityContext") == {
        "privileged": True,
        "runAsUser": 1000,
        "runAsGroup": 1000,
        "runAsNonRoot": True,
    }
    assert newer == older
