"""A spec and an address's options as a pod's manifest, and back."""

import time
from typing import Any

import pytest

from excise.errors import SpecError
from excise.registry import make
from excise.spec import Limits, Secret, Spec
from excise.substrates.kubernetes import options, pod
from excise.substrates.kubernetes.options import Options


def manifest(spec: Spec | None = None, given: Options | None = None, **more: Any) -> dict[str, Any]:
    terms = {"labels": {}, "lease_s": 100.0, "request_id": "abc", "client": "me", "made_by": "once"} | more
    return pod.manifest(spec or Spec(), given or Options(), **terms)


def of(made: dict[str, Any], name: str) -> Any:
    return made["spec"]["containers"][0].get(name)


def test_a_pod_gets_nothing_it_does_not_need() -> None:
    spec = manifest()["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["restartPolicy"] == "Never"
    assert "serviceAccountName" not in spec
    assert not {"hostNetwork", "hostPID", "hostIPC", "volumes"} & spec.keys()
    security = of(manifest(), "securityContext")
    assert security["capabilities"]["drop"] == ["ALL"]
    assert not {"SYS_ADMIN", "NET_ADMIN", "NET_RAW", "SYS_PTRACE", "MKNOD"} & set(security["capabilities"]["add"])
    assert (security["privileged"], security["allowPrivilegeEscalation"]) == (False, False)
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}


def test_restricted_is_what_pod_security_calls_so() -> None:
    security = of(manifest(given=Options(security="restricted")), "securityContext")
    assert security["runAsNonRoot"] is True
    assert security["capabilities"] == {"drop": ["ALL"]}


def test_neither_variables_nor_secrets_are_in_it() -> None:
    made = manifest(Spec(env={"NAME": "open-word"}, secrets={"KEY": Secret("hush")}))
    assert "open-word" not in str(made)
    assert "hush" not in str(made)


def test_limits_are_the_containers() -> None:
    given = Options(ephemeral_storage="2Gi")
    made = manifest(Spec(limits=Limits(memory_bytes=1 << 26, cpus=0.5)), given)
    assert of(made, "resources") == {"limits": {"memory": "67108864", "cpu": "500m", "ephemeral-storage": "2Gi"}}
    assert of(manifest(), "resources") == {}
    assert pod.spec_of(made).limits == Limits(memory_bytes=1 << 26, cpus=0.5)


def test_the_least_part_of_a_processor_is_not_none_of_it() -> None:
    assert of(manifest(Spec(limits=Limits(cpus=0.0001))), "resources") == {"limits": {"cpu": "1m"}}


def test_where_it_may_run_and_what_it_may_pull() -> None:
    text = "kubernetes?runtime_class=gvisor&node_selector=disk:ssd,zone.io/a:b&tolerations=gpu=true:NoSchedule,old,*"
    made = make(f"{text}&pull_policy=Always&pull_secrets=one,two&service_account=mine")
    assert made.address == f"{text}&pull_policy=Always&pull_secrets=one,two&service_account=mine"
    given = options.parsed(
        {
            "runtime_class": "gvisor",
            "node_selector": "disk:ssd,zone.io/a:b",
            "tolerations": "gpu=true:NoSchedule,old,*",
            "pull_policy": "Always",
            "pull_secrets": "one,two",
            "service_account": "mine",
        }
    )
    spec = manifest(given=given)["spec"]
    assert spec["runtimeClassName"] == "gvisor"
    assert spec["nodeSelector"] == {"disk": "ssd", "zone.io/a": "b"}
    assert spec["tolerations"] == [
        {"key": "gpu", "operator": "Equal", "value": "true", "effect": "NoSchedule"},
        {"key": "old", "operator": "Exists"},
        {"operator": "Exists"},
    ]
    assert spec["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}]
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("mine", True)
    assert spec["containers"][0]["imagePullPolicy"] == "Always"


@pytest.mark.parametrize("address", ["kubernetes?node_selector=disk", "kubernetes?tolerations=a=b:Never"])
def test_an_option_that_cannot_be_read_shows_what_one_looks_like(address: str) -> None:
    with pytest.raises(SpecError, match=r"looks like|it is key:value"):
        make(address)


def test_an_image_that_is_nobodys_is_never_fetched() -> None:
    assert (of(manifest(), "image"), of(manifest(), "imagePullPolicy")) == ("excise/base", "Never")
    named = manifest(Spec(image="debian:12"))
    assert (of(named, "image"), of(named, "imagePullPolicy")) == ("debian:12", None)
    assert of(manifest(given=Options(image="debian:12")), "image") == "debian:12"


@pytest.mark.parametrize("image", ["./root.tar", "/x/y.tar.gz"])
def test_a_file_of_this_machine_is_refused(image: str) -> None:
    with pytest.raises(SpecError, match="push it to a registry"):
        manifest(Spec(image=image))


@pytest.mark.parametrize("request_id", ["Upper", "a_b", "-a", "x" * 200, "a b/c", "ü"])
def test_every_request_has_a_name_that_the_api_takes(request_id: str) -> None:
    import re

    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])", pod.name(request_id))
    assert pod.name(request_id) != pod.name(request_id + "x")
    assert pod.name("abc") != pod.name("abc", "guest")


def test_any_text_can_be_a_label_and_be_asked_for() -> None:
    made = manifest(labels={"task": "a b/ü\n", "x" * 300: "y" * 300})
    assert pod.labels_of(made) == {"task": "a b/ü\n", "x" * 300: "y" * 300}
    asked = pod.selector({"task": "a b/ü\n"}, "exec").split(",")
    assert asked[0] == "excise.dev/sandbox=exec"
    assert asked[1] in made["metadata"]["labels"]
    assert pod.selector({"task": "other"}).split(",")[1] not in made["metadata"]["labels"]
    assert all(len(key.partition("/")[2]) <= 63 for key in made["metadata"]["labels"])


def test_a_lease_is_read_back_and_one_of_another_hand_is_none() -> None:
    made = manifest(lease_s=100.0)
    assert 99 < (pod.lease_left_s(made) or 0) < 100.001  # it is written in milliseconds
    made["metadata"]["annotations"][pod.LEASE] = "tomorrow"
    assert pod.lease_left_s(made) is None
    assert made["spec"]["activeDeadlineSeconds"] >= 10 * 100


def test_an_id_is_one_life_of_a_name() -> None:
    made = manifest()
    made["metadata"] |= {"uid": "1-2", "creationTimestamp": "2026-01-01T00:00:00Z"}
    assert pod.split_id(pod.sandbox_id(made)) == ("excise-abc", "1-2")
    listed = pod.listed(made)
    assert listed.id == "excise-abc.1-2"
    assert (listed.age_s or 0) > time.time() - time.time() + 1


@pytest.mark.parametrize(("network", "label"), [(None, "closed"), ("open", "open"), ("none", "closed")])
def test_the_policy_closes_what_is_not_opened(network: Any, label: str) -> None:
    assert manifest(Spec(network=network))["metadata"]["labels"][pod.NETWORK] == label
