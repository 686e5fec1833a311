"""docs/kubernetes/rbac.yaml: enough for a sandbox's whole life on both paths, and no verb of it too many."""

import asyncio
import copy
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from a_cluster import admin, eventually, grant, own_namespace
from excise.api import connect
from excise.errors import ExciseError, SandboxLost, SubstrateError
from excise.sandbox import Sandbox
from excise.spec import Spec
from excise.substrates.kubernetes.dial import exec_carrier, port_carrier
from excise.substrates.kubernetes.options import Options
from excise.substrates.kubernetes.pod import LEASE
from excise.substrates.kubernetes.pods import Pods
from excise.substrates.kubernetes.policy import Policy
from excise.substrates.kubernetes.refusals import Forbidden, Gone

MANIFEST = Path(__file__).parents[2] / "docs" / "kubernetes" / "rbac.yaml"
POLICIES, POLICY, NETWORKING = "networkpolicies", "excise-closed", "networking.k8s.io/v1"
NEWER_SERVERS = {("pods/exec", "create"), ("pods/portforward", "create")}
"""What a WebSocket needs from Kubernetes 1.35 on."""
Use = Callable[[Pods], Awaitable[object]]


def rules() -> list[dict[str, Any]]:
    import yaml

    kinds = {one["kind"]: one for one in yaml.safe_load_all(MANIFEST.read_text())}
    assert kinds["RoleBinding"]["roleRef"]["name"] == kinds["Role"]["metadata"]["name"]
    assert kinds["RoleBinding"]["subjects"] == [{"kind": "ServiceAccount", "name": kinds["ServiceAccount"]["metadata"]["name"]}]
    return kinds["Role"]["rules"]


@pytest.fixture(scope="module")
def namespace(runs_here: Callable[[str], None]) -> Generator[str]:
    runs_here("kubernetes")
    with own_namespace() as name:
        yield name


@pytest.mark.parametrize(
    "substrate", ["kubernetes", "kubernetes+guest", "kubernetes+guest?link=exec", "kubernetes+guest?guest=exec"]
)
def test_it_is_enough_for_a_whole_life(namespace: str, tmp_path: Path, substrate: str) -> None:
    async def scenario() -> None:
        async with admin(namespace) as api:
            account = f"whole-{substrate.partition('+')[2].replace('?', '-').replace('=', '-') or 'plain'}"
            config = await grant(api, account, rules(), tmp_path / "config")
        mark = "&" if "?" in substrate else "?"
        async with connect(f"{substrate}{mark}kubeconfig={config}") as made:
            async with Sandbox(made, Spec(), ttl_s=60) as box:
                assert (await box.run("echo hello")).text == "hello\n"
                await box.write("/tmp/a", b"b")
                assert await box.read("/tmp/a") == b"b"
                await box.renew(120)
            assert await made.collect() == ()

    asyncio.run(scenario())


async def _policy(pods: Pods) -> None:
    """Its whole life: made, found, moved on, taken when its lease is over."""
    await Policy(pods.api).hold()
    policy = Policy(pods.api)
    await policy.hold()
    await pods.api.patch(POLICIES, POLICY, {"metadata": {"annotations": {LEASE: "0"}}}, group=NETWORKING)
    await policy.collect()
    if await pods.api.get(POLICIES, POLICY, group=NETWORKING) is not None:
        raise Forbidden("it is still there")


async def _conflict(pods: Pods) -> None:
    with pytest.raises(SandboxLost, match="there is no sandbox"):
        await pods.find("excise-none.uid", "exec")


async def _hears(pods: Pods) -> None:
    """Without the events a create goes on, and knows less; that is said."""
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())
    logger = logging.getLogger("excise")
    logger.addHandler(handler)
    try:
        followed = pods.follow("none")
        await pods._watch.start()
        await asyncio.sleep(0)
        await _watching(pods)
        del followed
    finally:
        logger.removeHandler(handler)
    if any("what is said of pods is not seen" in line for line in heard):
        raise Forbidden(heard[0])


async def _watching(pods: Pods) -> None:
    """Both watches were answered, one way or the other."""
    for watch in (pods._watch._pods, pods._watch._events):
        task = watch._task
        if task is not None:
            await asyncio.wait([task], timeout=0.5)


async def _watches(pods: Pods) -> None:
    followed = pods.follow("none")
    await pods._watch.start()
    await _watching(pods)
    if followed._broken is not None:
        raise followed._broken


async def _absent(asked: Awaitable[object]) -> None:
    """There is no such pod, which is said only to who may ask."""
    try:
        await asked
    except (Gone, SandboxLost) as error:
        if "you may not" in str(error):
            raise Forbidden(str(error)) from None


USES: dict[tuple[str, str], Use] = {
    ("pods", "create"): lambda pods: pods.api.create("pods", _pod()),
    ("pods", "get"): _conflict,
    ("pods", "list"): lambda pods: pods.list({}, "exec"),
    ("pods", "watch"): _watches,
    ("pods", "patch"): lambda pods: _absent(pods.renew("none", "uid", 1)),
    ("pods", "delete"): lambda pods: pods.remove("none", "uid"),
    ("pods/exec", "get"): lambda pods: _absent(exec_carrier(pods.api, "none", "sandbox", ("true",))),
    ("pods/portforward", "get"): lambda pods: _absent(port_carrier(pods.api, "none", 1)),
    ("events", "list"): _hears,
    ("events", "watch"): _hears,
    ("networkpolicies", "create"): _policy,
    ("networkpolicies", "get"): _policy,
    ("networkpolicies", "patch"): _policy,
    ("networkpolicies", "delete"): _policy,
}


def _pod() -> dict[str, Any]:
    """One that no node takes, so that it costs nothing; the test deletes it."""
    containers = [{"name": "none", "image": "none", "resources": {"requests": {"cpu": "1000000"}}}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "never"}, "spec": {"containers": containers}}


@asynccontextmanager
async def allowed(namespace: str, without: tuple[str, str] | None, place: Path) -> AsyncGenerator[Pods]:
    """The pods of an account that may do all the manifest says, but for one verb."""
    left = copy.deepcopy(rules())
    for rule in left:
        if without is not None and without[0] in rule["resources"]:
            rule["verbs"].remove(without[1])
    name = "least-" + ("all" if without is None else "-".join(without).replace("/", "-"))
    async with admin(namespace) as api:
        config = await grant(api, name, left, place / name)
        pods = Pods(Options(kubeconfig=config))
        try:
            await eventually(lambda: _may(pods, left), "the role does not count yet")
            yield pods
        finally:
            await pods.close()
            await api.delete("pods", "never")
            await api.delete(POLICIES, POLICY, group=NETWORKING)


async def _may(pods: Pods, granted: list[dict[str, Any]]) -> bool | None:
    """The API server has heard of the role: it allows the last of its verbs."""
    await pods.api.open()
    rule = next(rule for rule in reversed(granted) if rule["verbs"])
    what = {
        "namespace": pods.api.namespace,
        "group": rule["apiGroups"][0],
        "resource": rule["resources"][0].partition("/")[0],
        "subresource": rule["resources"][0].partition("/")[2],
        "verb": rule["verbs"][-1],
    }
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": what}}
    answer = await pods.api.request(
        "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", what="ask for rights", body=body
    )
    return answer[1]["status"]["allowed"] or None


def test_no_verb_of_it_is_too_many(namespace: str, tmp_path: Path) -> None:
    """Everything we ask of the API works with all of it; without any one verb, what needs that verb is refused."""
    granted = {(resource, verb) for rule in rules() for resource in rule["resources"] for verb in rule["verbs"]}
    assert granted == USES.keys() | NEWER_SERVERS

    async def with_all() -> None:
        async with allowed(namespace, None, tmp_path) as pods:
            for use in USES.values():
                await use(pods)

    async def without(verb: tuple[str, str]) -> str | None:
        async with allowed(namespace, verb, tmp_path) as pods:
            try:
                await USES[verb](pods)
            except Forbidden:
                return None
            except ExciseError as error:
                return f"{verb}: {error!r}"
        return f"{verb}: nothing broke"

    async def scenario() -> None:
        await with_all()
        # All at once, but for those that make the one policy of a namespace.
        alone, together = (tuple(verb for verb in USES if (verb[0] == POLICIES) is shared) for shared in (True, False))
        wrong = await asyncio.gather(*(without(verb) for verb in together))
        wrong += [await without(verb) for verb in alone]
        assert [said for said in wrong if said is not None] == []

    asyncio.run(scenario())


def test_without_any_right_the_error_names_the_manifest(namespace: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with admin(namespace) as api:
            config = await grant(api, "nothing", [], tmp_path / "config")
        for address in ("kubernetes", "kubernetes+guest"):
            async with connect(f"{address}?kubeconfig={config}") as substrate:
                with pytest.raises(SubstrateError, match=r"you may not .* pods.*docs/kubernetes/rbac\.yaml"):
                    await Sandbox(substrate, Spec(), wait_s=30).open()

    asyncio.run(scenario())
