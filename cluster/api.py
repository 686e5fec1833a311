"""As much of a client of the API as bringing a cluster up takes: one question, and waiting on a watch."""

import http.client
import json
import ssl
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from cluster.errors import ClusterError
from cluster.places import ADDRESS, API_PORT

Resource = dict[str, Any]


def get(certificates: Path, path: str, limit_s: float = 10.0) -> tuple[int, str]:
    """The status and the body of the answer to one GET, as the administrator."""
    connection = _connection(certificates, limit_s)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def wait(certificates: Path, path: str, name: str, met: Callable[[Resource], bool], limit_s: float) -> Resource:
    """The resource called `name` of the collection at `path`, as soon as `met` says so of it."""
    until = time.monotonic() + limit_s
    connection = _connection(certificates, limit_s)
    last: Resource = {}
    try:
        connection.request("GET", f"{path}?watch=1&fieldSelector=metadata.name%3D{name}&timeoutSeconds={int(limit_s)}")
        answer = connection.getresponse()
        if answer.status != http.HTTPStatus.OK:
            raise ClusterError(f"the API server refused a watch of {path}: {answer.status} {answer.read().decode().strip()}")
        while time.monotonic() < until and (line := answer.readline()):
            event = json.loads(line)
            last = event["object"]
            if event["type"] == "ERROR":
                raise ClusterError(f"the API server ended a watch of {path}: {last['message']}")
            if met(last):
                return last
    except TimeoutError:
        pass
    finally:
        connection.close()
    raise ClusterError(f"{name} was not as it should be after {limit_s:.0f} s; it says: {json.dumps(last.get('status'))}")


def node_is_ready(node: Resource, since: datetime | None = None) -> bool:
    """Whether its kubelet says so, and said so at `since` or later."""
    for condition in node.get("status", {}).get("conditions", []):
        if condition["type"] == "Ready":
            said = datetime.fromisoformat(condition["lastHeartbeatTime"])
            return condition["status"] == "True" and (since is None or said >= since)
    return False


def _connection(certificates: Path, limit_s: float) -> http.client.HTTPSConnection:
    context = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
    context.load_cert_chain(certificates / "admin.crt", certificates / "admin.key")
    return http.client.HTTPSConnection(ADDRESS, API_PORT, context=context, timeout=limit_s)
