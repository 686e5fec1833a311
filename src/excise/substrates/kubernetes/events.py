"""Why there is no sandbox, or no longer one: from the pod's own status, and what the scheduler and the kubelet said of it."""

import re
from collections.abc import Mapping
from typing import Any

from excise.errors import CapacityError, CreateError, ExciseError, SandboxLost, SpecError
from excise.substrates.kubernetes.watch import Followed

_LONGEST = 600
_SPARE_S = 0.5
_WRONG_IMAGE = re.compile(r"not found|manifest unknown|denied|unauthorized|authentication required|no match for platform", re.I)
_WRONG_PROGRAM = re.compile(r"\bexec\b|chdir|not found|no such file|permission denied", re.I)
"""Of a container that could not be started: what its image lacks. Anything else is the node's, as when a kubelet was killed."""
_NO_ROOM = ("OutOfcpu", "OutOfmemory", "OutOfpods", "OutOfephemeral-storage", "Evicted", "Preempting", "NodeShutdown")
_NODE_LOST = ("NodeLost", "DeletionByTaintManager", "DeletionByPodGC", "NodeNotReady")


def statuses(pod: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Of its containers, those that come before the sandbox's first."""
    status: Mapping[str, Any] = pod.get("status") or {}
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _state_of(one: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Of a container's state: what it says as `waiting`, `running` or `terminated`, if it is that."""
    states: Mapping[str, Any] = one.get("state") or {}
    return states.get(name) or {}


def is_started(pod: Mapping[str, Any]) -> bool:
    """Whether its container runs."""
    status: Mapping[str, Any] = pod.get("status") or {}
    found: list[dict[str, Any]] = status.get("containerStatuses") or []
    return bool(found) and all("running" in (one.get("state") or {}) for one in found)


def refusal(followed: Followed) -> ExciseError | None:
    """While it is being made: the cause, if it is definitive. What may yet change is waited for until the deadline."""
    pod = followed.pod
    if pod is None:
        return None
    if followed.gone or pod["metadata"].get("deletionTimestamp"):
        return CreateError("the pod was deleted by somebody else before it had started: see who clears this namespace")
    status: Mapping[str, Any] = pod.get("status") or {}
    for one in statuses(pod):
        if (found := _container_refusal(one, followed)) is not None:
            return found
    if (found := _no_sandbox(followed)) is not None:
        return found
    if status.get("phase") in ("Failed", "Succeeded"):
        reason, said = status.get("reason") or status["phase"], _short(status.get("message"))
        kind = CapacityError if reason in _NO_ROOM else CreateError
        return kind(f"the node did not take the pod ({reason}: {said}): try again, or elsewhere")
    return None


def _no_sandbox(followed: Followed) -> ExciseError | None:
    """The kubelet tries again and again to set a pod up; two of the reasons it gives stay what they are."""
    for event in followed.events:
        if event.get("reason") != "FailedCreatePodSandBox":
            continue
        said = _short(event.get("message"))
        if "memory limit too low" in said or "OOM-killed" in said:
            return SpecError(f"limits.memory_bytes is too little for any program: raise it ({said})")
        if "no runtime for" in said:
            return SpecError(f"the node has no runtime of this runtime_class: install it there, or name another ({said})")
    return None


def _container_refusal(one: Mapping[str, Any], followed: Followed) -> ExciseError | None:
    waiting, ended = _state_of(one, "waiting"), _state_of(one, "terminated")
    reason, said, image = waiting.get("reason", ""), _short(waiting.get("message")), one.get("image", "")
    match reason:
        case "InvalidImageName":
            return SpecError(f"{image!r} is no image's name: {said}")
        case "ErrImageNeverPull":
            return SpecError(
                f"the node does not hold the image {image!r} and may not pull it: import it, or say pull_policy=IfNotPresent"
            )
        case "ErrImagePull" if _WRONG_IMAGE.search(said):  # trying again, as the kubelet will, gives the same
            return _no_image(image, said)
        case "ImagePullBackOff":
            return _no_image(image, _pull_words(followed) or said)
        case "CreateContainerConfigError":
            return SpecError(f"the pod's container cannot be configured: {said}")
        case "CreateContainerError" | "RunContainerError" | "CrashLoopBackOff":
            return CreateError(f"the node cannot start the pod's container ({reason}): {said}")
        case _:
            return _ended_early(ended, one) if ended and not (ended.get("exitCode") == 0 and _is_first(one, followed)) else None


def _is_first(one: Mapping[str, Any], followed: Followed) -> bool:
    """Of the containers whose end is what they are for."""
    status: Mapping[str, Any] = (followed.pod or {}).get("status") or {}
    return any(first.get("name") == one.get("name") for first in status.get("initContainerStatuses") or ())


def _ended_early(ended: Mapping[str, Any], one: Mapping[str, Any]) -> ExciseError:
    reason, said = ended.get("reason", ""), _short(ended.get("message"))
    if reason == "OOMKilled":
        return SpecError("limits.memory_bytes is too little for any program: raise it")
    if reason in ("StartError", "ContainerCannotRun") and _WRONG_PROGRAM.search(said):
        return SpecError(f"no program starts with this spec's image {one.get('image')!r}: it must hold sh ({said})")
    return CreateError(f"the container {one.get('name')!r} ended at once ({reason}, {ended.get('exitCode')}): {said}")


def _no_image(image: str, said: str) -> ExciseError:
    kind = SpecError if _WRONG_IMAGE.search(said) else CreateError
    remedy = "name one that is there, or give the node the right to it by pull_secrets=" if kind is SpecError else "try again"
    return kind(f"the image {image!r} cannot be pulled ({said}): {remedy}")


def _pull_words(followed: Followed) -> str:
    """The registry's own words: the kubelet's event has them, the status says `Back-off` only."""
    said = [_short(event.get("message")) for event in followed.events if event.get("reason") == "Failed"]
    return next((words for words in reversed(said) if words.startswith("Failed to pull")), "")


def state(followed: Followed) -> str:
    """How far it has come, for who waited in vain."""
    pod = followed.pod
    if pod is None:
        return "the API server has not answered"
    for one in statuses(pod):
        waiting = _state_of(one, "waiting")
        if waiting.get("reason") in ("ErrImagePull", "ImagePullBackOff"):
            return f"the image {one.get('image')!r} is not there yet: {_pull_words(followed) or _short(waiting.get('message'))}"
    pulls = [event for event in followed.events if event.get("reason") in ("Pulling", "Pulled")]
    if pulls and pulls[-1]["reason"] == "Pulling":  # of several images, the one that is on its way now
        return f"the image is being pulled: {_short(pulls[-1].get('message'))}"
    warned = [event for event in followed.events if event.get("type") == "Warning"]
    if warned:
        return f"{warned[-1].get('reason')}: {_short(warned[-1].get('message'))}"
    return "its node is starting it" if pod["spec"].get("nodeName") else "no node was chosen"


def unschedulable(followed: Followed) -> str | None:
    """The scheduler's words, if no node takes it as things are."""
    status: Mapping[str, Any] = (followed.pod or {}).get("status") or {}
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("reason") in ("Unschedulable", "SchedulingGated"):
            return _short(condition.get("message"))
    return None


def in_time_s(deadline_s: float) -> float:
    """A deadline with room to clear up and to say why: past it, whoever waits has gone and hears nothing."""
    return deadline_s - min(_SPARE_S, deadline_s / 10)


def late(followed: Followed, address: str, deadline_s: float) -> ExciseError:
    """What to raise when the deadline is over."""
    if (why := unschedulable(followed)) is not None:
        return CapacityError(f"no node took the pod in {deadline_s:g} s: make room, or ask for less ({why})")
    waited = f"{address} made no sandbox in {deadline_s:g} s; allow more if it is only slow"
    return CreateError(f"{waited} ({state(followed)})")


def loss(
    pod: Mapping[str, Any] | None, *, gone: bool = False, events: "list[dict[str, Any]] | None" = None
) -> SandboxLost | None:
    """Why a sandbox that ran runs no longer; None if its pod looks alive."""
    if pod is None:
        return SandboxLost("the sandbox's pod is gone: it was deleted")
    status: Mapping[str, Any] = pod.get("status") or {}
    disrupted = _disrupted(status)
    reason, said = status.get("reason") or "", _short(status.get("message"))
    if reason == "Evicted":
        return SandboxLost(f"the sandbox's pod was evicted from its node: {said}")
    if reason in _NODE_LOST or disrupted in _NODE_LOST or _node_is_lost(events or ()):
        return SandboxLost(f"the node of the sandbox's pod is lost ({disrupted or reason or 'NodeNotReady'})")
    if reason == "DeadlineExceeded":
        return SandboxLost("the sandbox's pod was ended after its longest time (activeDeadlineSeconds): make another sandbox")
    for one in statuses(pod):
        ended = _state_of(one, "terminated")
        if ended.get("reason") == "OOMKilled":
            return SandboxLost(f"the sandbox's container was killed for lack of memory (OOMKilled, {_memory(pod)})")
        if ended and not (ended.get("exitCode") == 0 and one in (status.get("initContainerStatuses") or ())):
            code, last = ended.get("exitCode"), _short(ended.get("message"))
            return SandboxLost(f"the sandbox's container ended ({ended.get('reason')}, {code}): {last}")
    if status.get("phase") in ("Failed", "Succeeded"):
        return SandboxLost(f"the sandbox's pod ended ({reason or status['phase']}): {said}")
    if gone or pod["metadata"].get("deletionTimestamp"):
        return SandboxLost(f"the sandbox's pod was deleted{f' ({disrupted})' if disrupted else ''}")
    return None


def _disrupted(status: Mapping[str, Any]) -> str:
    found = (one for one in status.get("conditions") or () if one.get("type") == "DisruptionTarget")
    return next((one.get("reason", "") for one in found if one.get("status") == "True"), "")


def _node_is_lost(events: "tuple[()] | list[dict[str, Any]]") -> bool:
    return any(event.get("reason") in _NODE_LOST for event in events)


def _memory(pod: Mapping[str, Any]) -> str:
    limits: Mapping[str, str] = pod["spec"]["containers"][0].get("resources", {}).get("limits") or {}
    return f"its limit is {limits['memory']}" if "memory" in limits else "it has no limit: the node ran out"


def _short(text: object) -> str:
    return " ".join(str(text or "nothing was said").split())[:_LONGEST]
