"""A real cluster for tests: a namespace of their own in it, accounts with chosen rights, a registry that pods pull from."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from excise.substrates.kubernetes.api import Api

DEADLINE_S = 60.0
T = TypeVar("T")


async def eventually(found: Callable[[], Awaitable[T | None]], what: str) -> T:
    """What `found` gives, once it gives something: for what a cluster does in its own time and tells nobody of."""
    until = time.monotonic() + DEADLINE_S
    while (value := await found()) is None:
        assert time.monotonic() < until, what
        await asyncio.sleep(0.05)
    return value


@asynccontextmanager
async def admin(namespace: str | None = None) -> AsyncGenerator[Api]:
    """The cluster, as whoever brought it up."""
    api = Api(namespace=namespace)
    await api.open()
    try:
        yield api
    finally:
        await api.close()


async def make_namespace() -> str:
    name = f"excise-test-{uuid.uuid4().hex[:8]}"
    async with admin(name) as api:
        await api.request("POST", "/api/v1/namespaces", what="create namespaces", body={"metadata": {"name": name}})
        # Pods are refused until the namespace has its account.
        await eventually(lambda: api.get("serviceaccounts", "default"), "the namespace has no account")
    return name


async def remove_namespace(name: str) -> list[str]:
    """What pods it still held; then it is gone."""
    async with admin(name) as api:
        pods = [pod["metadata"]["name"] for pod in (await api.list("pods")).get("items") or ()]
        path = f"/api/v1/namespaces/{name}"
        await api.request("DELETE", path, what="delete namespaces")

        async def gone() -> bool | None:
            return (await api.request("GET", path, what="get namespaces", accept=(404,)))[0] == 404 or None

        await eventually(gone, f"the namespace {name} is not deleted")
    return pods


@contextmanager
def own_namespace() -> Generator[str]:
    """A namespace; no pod may be left in it."""
    name = asyncio.run(make_namespace())
    try:
        yield name
    finally:
        left = asyncio.run(remove_namespace(name))
    assert left == []


def processes_of(uid: str) -> dict[int, bytes]:
    """What runs of a pod on this host, each with its command line; its own pause is left out."""
    found: dict[int, bytes] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if uid in (entry / "cgroup").read_text().replace("_", "-"):
                found[int(entry.name)] = (entry / "cmdline").read_bytes()
        except OSError:
            continue  # it ended while we looked
    return {pid: line for pid, line in found.items() if line and not line.startswith(b"/pause")}


async def grant(api: Api, name: str, rules: list[dict[str, Any]], path: Path) -> str:
    """A kubeconfig, at `path`, of a new account that may do just this in the API's namespace."""
    group = "rbac.authorization.k8s.io/v1"
    await api.create("serviceaccounts", {"metadata": {"name": name}})
    await api.create("roles", {"metadata": {"name": name}, "rules": rules}, group=group)
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": api.namespace}],
    }
    await api.create("rolebindings", binding, group=group)
    asked = {"spec": {"expirationSeconds": 3600}}
    made = await api.request(
        "POST", api.path("serviceaccounts", f"{name}/token"), what="create serviceaccounts/token", body=asked
    )
    config = json.loads(json.dumps(as_kubeconfig(api, made[1]["status"]["token"])))
    path.write_text(json.dumps(config))
    path.chmod(0o600)
    return str(path)


def as_kubeconfig(api: Api, token: str) -> dict[str, Any]:
    """The same cluster, as another."""
    import yaml

    known = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    cluster = known["clusters"][0]["cluster"]
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "it",
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it", "namespace": api.namespace}}],
        "clusters": [{"name": "it", "cluster": cluster}],
        "users": [{"name": "it", "user": {"token": token}}],
    }


@contextmanager
def registry(place: Path, must_work: Callable[[str, str], None]) -> Generator[int]:
    """Debian's docker-registry on loopback; its port."""
    program = shutil.which("docker-registry")
    if program is None:
        must_work("docker-registry", "it is not installed: apt-get install docker-registry")
        raise AssertionError
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = place / "config.yml"
    config.write_text(
        f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {place}/data}}}}\n"
        f"http: {{addr: '127.0.0.1:{port}'}}\n"
    )
    with subprocess.Popen([program, "serve", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            until = time.monotonic() + DEADLINE_S
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                except ConnectionRefusedError:
                    assert time.monotonic() < until, "the registry did not come up"
            yield port
        finally:
            server.terminate()


class Between:
    """A proxy in front of a registry, on a port of its own, that is slow or breaks off as it is told."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.delay_s = 0.0
        """Of every answer's first bytes."""
        self.cut_after_bytes: int | None = None
        """Of every connection's answers."""
        self._threads: list[threading.Thread] = []
        self._open: set[socket.socket] = set()
        self._ended = threading.Event()

    def __enter__(self) -> "Between":
        self._run(self._accept)
        return self

    def __exit__(self, *how: object) -> None:
        self._ended.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for sock in tuple(self._open):
            _hang_up(sock)
        for thread in self._threads:
            thread.join(DEADLINE_S)

    def _run(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near = self._listening.accept()[0]
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._to))
            self._open |= {near, far}
            self._run(self._pump, near, far, None)
            self._run(self._pump, far, near, self.cut_after_bytes)

    def _pump(self, source: socket.socket, sink: socket.socket, cut: int | None) -> None:
        passed = 0
        try:
            while data := source.recv(65536):
                if source.getpeername()[1] == self._to and self._ended.wait(self.delay_s):
                    break
                passed += len(data)
                if cut is not None and passed > cut:
                    break
                sink.sendall(data)
        except OSError:
            pass
        _hang_up(source)
        _hang_up(sink)


def _hang_up(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
    finally:
        sock.close()


def forget(part_of_name: str) -> int:
    """Take the images whose name has this in it from the node, by all their names; how many they were."""
    from cluster.images import _ctr  # pyright: ignore[reportPrivateUsage]
    from cluster.places import places

    held = [line.split() for line in _ctr(places(), "images", "list").splitlines()[1:]]
    digests = {words[2] for words in held if part_of_name in words[0]}
    names = [words[0] for words in held if words[2] in digests]
    if names:
        _ctr(places(), "images", "remove", *names)
    return len(digests)
