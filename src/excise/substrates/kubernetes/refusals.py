"""What the API server refuses, sorted by who must act, each in a sentence that says what to do."""

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from excise.errors import CapacityError, ExciseError, SandboxLost, SpecError, SubstrateError

_LACKING = re.compile(r'cannot (\w+) resource "([^"]+)"(?: in API group "([^"]*)")?(?: in the namespace "([^"]*)")?')
_LONGEST = 600


class Unreachable(SubstrateError):  # noqa: N818 - what it says, sorted further up
    """Nobody answers where the kubeconfig says that the API is."""


class Unauthorized(SubstrateError):  # noqa: N818 - what it says, sorted further up
    """The API server does not know us."""


class Forbidden(SubstrateError):  # noqa: N818 - what it says, sorted further up
    """The API server knows us, and we may not."""


class Conflict(SubstrateError):  # noqa: N818 - what it says, sorted further up
    """Something else was there first (409)."""


class Gone(SubstrateError):  # noqa: N818 - what it says, sorted further up
    """It is not there (404)."""


class Expired(SubstrateError):  # noqa: N818 - what it says, sorted further up
    """What was seen last is too old for a watch to go on from (410)."""


def sentence(text: str) -> str:
    """What the cluster said, on one line. Where it names the kubelet's own URL of an exec, the command in it is left out."""
    return re.sub(r"\?command=[^\s\"]*", "", " ".join(text.split()))[:_LONGEST]


def refusal(status: int, answer: Mapping[str, Any], *, what: str, where: str) -> ExciseError:
    """The error for an answer of the API server's. `what`: the verb and the resource; `where`: the server, and who named it."""
    said = sentence(str(answer.get("message") or answer.get("reason") or f"status {status}"))
    match status:
        case 401:
            return Unauthorized(f"the API server at {where} does not know you (401): sign in again, or renew the kubeconfig")
        case 403:
            return _forbidden(said, what)
        case 404:
            if missing := re.match(r'namespaces "([^"]+)" not found', said):
                return SpecError(
                    f"there is no namespace {missing[1]!r}: `kubectl create namespace {missing[1]}`, or name another"
                )
            return Gone(f"{what}: it is not there ({said})")
        case 409:
            return Conflict(f"{what}: {said}")
        case 410:
            return Expired(said)
        case 400 | 422:
            return SpecError(f"the cluster does not take this spec: {said}")
        case 429:
            return CapacityError(f"the API server at {where} is overloaded ({said}): try again later, or with fewer at once")
        case _:
            if "etcdserver: request timed out" in said or status == 504:
                return Unreachable(f"the API server at {where} got no answer in time from its store ({said}): try again")
            return SubstrateError(f"the API server at {where} failed to {what} ({status}): {said}")


def _forbidden(said: str, what: str) -> ExciseError:
    """403 is also how a quota, a LimitRange or Pod Security say no."""
    if "exceeded quota" in said:
        return CapacityError(f"the namespace's quota is used up: close sandboxes, or raise it ({said})")
    if "violates PodSecurity" in said:
        return SpecError(f"the namespace's Pod Security refuses the pod: say security=restricted, or label another ({said})")
    if "error looking up service account" in said:
        return SpecError(f"service_account= names one that this namespace does not have: leave it out, or make it ({said})")
    if "RuntimeClass" in said:
        return SpecError(f"the cluster does not have this runtime_class: `kubectl get runtimeclass` shows them ({said})")
    if lacking := _LACKING.search(said):
        verb, resource, group, namespace = lacking.groups()
        within = f" in namespace {namespace}" if namespace else ""
        named = f"{resource}.{group}" if group else resource
        return Forbidden(f"you may not {verb} {named}{within}: grant it, as docs/kubernetes/rbac.yaml does ({said})")
    if re.search(r"(minimum|maximum|limit to request ratio)", said):
        return SpecError(f"the namespace's LimitRange refuses the spec's limits: change them ({said})")
    return Forbidden(f"the cluster refuses to {what}: {said}")


@contextmanager
def losses() -> Generator[None]:
    """Under a sandbox: whatever the API server refuses, the sandbox is lost."""
    try:
        yield
    except Gone:
        raise SandboxLost("the sandbox's pod is gone") from None
    except SubstrateError as error:
        raise SandboxLost(str(error)) from None
