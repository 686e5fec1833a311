"""What a pod's status and the words about it mean, by who must act; a loss is never a result."""

from typing import Any

import pytest

from excise.errors import CapacityError, CreateError, ExciseError, SandboxLost, SpecError
from excise.substrates.kubernetes import events
from excise.substrates.kubernetes.watch import Followed


def pod(status: dict[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
    container = {"name": "sandbox", "image": "some/image", "resources": {"limits": {"memory": "64Mi"}}}
    return {
        "metadata": {"name": "p", "uid": "u", "resourceVersion": "1", **meta},
        "spec": {"containers": [container]},
        "status": status or {},
    }


def container(**state: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "sandbox", "image": "some/image", "state": state}]}


def followed(shown: dict[str, Any], *said: dict[str, Any], gone: bool = False) -> Followed:
    made = Followed("p")
    made.show(shown, gone=gone)
    for event in said:
        made.note(event)
    return made


WAITING: list[tuple[str, str, type[ExciseError]]] = [
    ("InvalidImageName", "couldn't parse", SpecError),
    ("ErrImageNeverPull", "not present with pull policy of Never", SpecError),
    ("CreateContainerConfigError", 'secret "x" not found', SpecError),
    ("ErrImagePull", "rpc error: manifest unknown", SpecError),
    ("ErrImagePull", "pull access denied, repository does not exist or may require authorization", SpecError),
    ("ImagePullBackOff", "Back-off pulling image: dial tcp: connection refused", CreateError),
    ("CreateContainerError", "context deadline exceeded", CreateError),
]


@pytest.mark.parametrize(("reason", "message", "kind"), WAITING)
def test_a_definitive_cause_is_told_before_the_deadline(reason: str, message: str, kind: type[ExciseError]) -> None:
    found = events.refusal(followed(pod(container(waiting={"reason": reason, "message": message}))))
    assert type(found) is kind


@pytest.mark.parametrize("reason", ["ContainerCreating", "PodInitializing", "ErrImagePull"])
def test_what_may_yet_come_is_waited_for(reason: str) -> None:
    shown = pod(container(waiting={"reason": reason, "message": "i/o timeout"}))
    assert events.refusal(followed(shown)) is None


def test_a_failed_pull_is_told_in_the_registrys_words() -> None:
    shown = pod(container(waiting={"reason": "ImagePullBackOff", "message": "Back-off"}))
    found = events.refusal(followed(shown, {"reason": "Failed", "message": 'Failed to pull image "x": teapot'}))
    assert "teapot" in str(found)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("container init was OOM-killed (memory limit too low?)", SpecError),
        ('no runtime for "gvisor" is configured', SpecError),
        ("network plugin is not ready", None),
    ],
)
def test_a_pod_that_cannot_be_set_up(said: str, kind: type[ExciseError] | None) -> None:
    found = events.refusal(followed(pod(), {"reason": "FailedCreatePodSandBox", "type": "Warning", "message": said}))
    assert type(found) is (kind or type(None))


@pytest.mark.parametrize(
    ("ended", "kind", "words"),
    [
        ({"reason": "StartError", "exitCode": 128, "message": 'exec: "sh": not found'}, SpecError, "must hold sh"),
        ({"reason": "StartError", "exitCode": 128, "message": "create shim task: context canceled"}, CreateError, "canceled"),
        ({"reason": "OOMKilled", "exitCode": 137}, SpecError, "memory_bytes"),
        ({"reason": "Error", "exitCode": 3, "message": "no"}, CreateError, "ended at once"),
    ],
)
def test_a_container_that_ends_at_once(ended: dict[str, Any], kind: type[ExciseError], words: str) -> None:
    found = events.refusal(followed(pod(container(terminated=ended))))
    assert type(found) is kind
    assert words in str(found)


def test_an_init_container_is_meant_to_end() -> None:
    done = {"name": "first", "state": {"terminated": {"reason": "Completed", "exitCode": 0}}}
    status = {"initContainerStatuses": [done], **container(running={})}
    assert events.refusal(followed(pod(status))) is None
    assert events.loss(pod(status)) is None
    assert events.is_started(pod(status))


def test_a_node_that_does_not_take_it_has_no_room() -> None:
    found = events.refusal(followed(pod({"phase": "Failed", "reason": "OutOfmemory", "message": "needs 5"})))
    assert type(found) is CapacityError


def test_a_pod_deleted_on_its_way_is_told() -> None:
    assert type(events.refusal(followed(pod(), gone=True))) is CreateError
    assert type(events.refusal(followed(pod(deletionTimestamp="now")))) is CreateError


def test_past_the_deadline_the_scheduler_has_the_word() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "Insufficient cpu"}
    found = events.late(followed(pod({"conditions": [condition]})), "kubernetes", 5)
    assert type(found) is CapacityError
    assert "Insufficient cpu" in str(found)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ([], "no node was chosen"),
        ([{"reason": "Pulling", "message": 'Pulling image "big"'}], "being pulled"),
        ([{"reason": "FailedMount", "type": "Warning", "message": "no volume"}], "FailedMount: no volume"),
    ],
)
def test_past_the_deadline_it_is_said_how_far_it_came(said: list[dict[str, Any]], words: str) -> None:
    found = events.late(followed(pod(), *said), "kubernetes", 5)
    assert type(found) is CreateError
    assert words in str(found)


LOST: list[tuple[dict[str, Any], str]] = [
    ({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}, "evicted"),
    ({"phase": "Failed", "reason": "DeadlineExceeded"}, "longest time"),
    ({"reason": "NodeLost"}, "node of the sandbox's pod is lost"),
    ({"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}]}, "node"),
    (container(terminated={"reason": "OOMKilled", "exitCode": 137}), "OOMKilled, its limit is 64Mi"),
    (container(terminated={"reason": "Error", "exitCode": 137}), "container ended (Error, 137)"),
    ({"phase": "Succeeded"}, "ended"),
]


@pytest.mark.parametrize(("status", "words"), LOST)
def test_death_is_told_by_the_pods_own_status(status: dict[str, Any], words: str) -> None:
    found = events.loss(pod(status))
    assert type(found) is SandboxLost
    assert words in str(found)


def test_a_pod_that_is_gone_or_going_is_lost() -> None:
    assert "deleted" in str(events.loss(None))
    assert "deleted" in str(events.loss(pod(), gone=True))
    assert "deleted" in str(events.loss(pod(deletionTimestamp="now")))


def test_the_node_controllers_word_is_heard() -> None:
    assert "lost" in str(events.loss(pod(container(running={})), events=[{"reason": "NodeNotReady"}]))


def test_one_that_runs_is_not_lost() -> None:
    assert events.loss(pod({"phase": "Running", **container(running={})})) is None
