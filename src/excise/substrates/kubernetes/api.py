"""The API server, as everything in this package talks to it: one session, few verbs, its refusals sorted."""

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import msgspec

from excise.errors import SpecError
from excise.substrates.kubernetes.credentials import Credentials, Shown
from excise.substrates.kubernetes.kubeconfig import Access, resolve
from excise.substrates.kubernetes.refusals import Unauthorized, Unreachable, refusal

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

    from excise.substrates.kubernetes.stream import ExecStream

REQUEST_S = 30.0
"""A request that has no answer by then is given up, whoever waits for it."""
_CONNECT_S = 10.0
_OVERLOADED = 429
_UNREAD_BYTES = 1 << 18
"""Of an exec's output, in our kernel; the connections behind the server's hold more."""
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 30.0
_MERGE = "application/merge-patch+json"
_JSON = "application/json"

Object = dict[str, Any]
"""A resource, as the API's JSON has it."""


class Api:
    """A client of one cluster. Nothing is read or connected before `open`, which the first request calls too."""

    def __init__(self, kubeconfig: str | None = None, context: str | None = None, namespace: str | None = None) -> None:
        self._kubeconfig = kubeconfig
        self._context = context
        self._namespace = namespace
        self._session: ClientSession | None = None
        self._streams: ClientSession | None = None
        self._access: Access | None = None
        self._credentials: Credentials | None = None

    async def open(self) -> None:
        """Read the kubeconfig and make the session; SpecError if that cannot be. Asks the server nothing."""
        if self._session is not None:
            return
        try:
            from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector  # noqa: PLC0415 - 0.2 s, paid late

            from excise.substrates.kubernetes.stream import Socket  # noqa: PLC0415 - as above
        except ImportError:
            raise SpecError("the client of Kubernetes is missing: `pip install 'excise[kubernetes]'`") from None
        self._access = resolve(self._kubeconfig, self._context)
        self._credentials = Credentials(self._access)
        # No limit on connections: each is one request in flight, and a sandbox must not wait for another's.
        self._session = ClientSession(
            connector=TCPConnector(limit=0),
            timeout=ClientTimeout(total=REQUEST_S, sock_connect=_CONNECT_S),
            cookie_jar=DummyCookieJar(),
        )
        # Of their own, because what a kernel would hold for a reader that does not read is tens of megabytes each.
        self._streams = ClientSession(
            connector=TCPConnector(limit=0, force_close=True, socket_factory=_small_socket),
            timeout=ClientTimeout(total=REQUEST_S, sock_connect=_CONNECT_S),
            cookie_jar=DummyCookieJar(),
            ws_response_class=Socket,
        )

    @property
    def access(self) -> Access:
        assert self._access is not None, "the API was not opened"
        return self._access

    @property
    def namespace(self) -> str:
        """The one that was asked for, else the context's."""
        return self._namespace or self.access.namespace

    @property
    def where(self) -> str:
        """For error texts."""
        return f"{self.access.server} ({self.access.named_by})"

    # ---- requests

    async def request(
        self,
        method: str,
        path: str,
        *,
        what: str,
        params: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = _JSON,
        accept: Collection[int] = (),
    ) -> tuple[int, Object]:
        """The status and the JSON of an answer. One that is a refusal is raised, unless its status is in `accept`.

        `what`: verb and resource, for error texts. Overload (429) is waited out as the server says, within the deadline.
        """
        tried_again = False
        while True:
            async with self._answer(method, path, params=params, body=body, content_type=content_type) as response:
                text = await response.read()
                status, pause = response.status, response.headers.get("Retry-After", "")
            answer = _decoded(text)
            if status < 400 or status in accept:
                return status, answer
            if status == 401 and not tried_again and self._credentials is not None and self._credentials.refused():
                tried_again = True
                continue
            if status == _OVERLOADED and pause.isdigit():
                pause_s = min(max(float(pause), _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)
                _log(f"the API server at {self.where} is overloaded and wants {pause_s:g} s of quiet ({what})")
                await asyncio.sleep(pause_s)
                continue
            raise refusal(status, answer, what=what, where=self.where)

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, *, params: Mapping[str, str] | None, body: object, content_type: str, timeout: Any = None
    ) -> "AsyncGenerator[ClientResponse]":
        await self.open()
        assert self._session is not None
        shown = await self._shown()
        headers = [*shown.headers, ("Accept", _JSON)]
        if body is not None:
            headers.append(("Content-Type", content_type))
        with self._reaching():
            request: Any = self._session.request  # its keywords are a TypedDict that does not take ours
            async with request(
                method,
                self.access.server + path,
                params=params,
                data=None if body is None else msgspec.json.encode(body),
                headers=headers,
                allow_redirects=False,
                timeout=timeout or self._session.timeout,
                **self._to(shown),
            ) as response:
                yield response

    async def shown(self) -> Shown:
        """For a connection of one's own: what shows the server who we are."""
        await self.open()
        return await self._shown()

    async def _shown(self) -> Shown:
        assert self._credentials is not None
        return await self._credentials.current()

    def _to(self, shown: Shown) -> dict[str, Any]:
        """How to get there."""
        made: dict[str, Any] = {"proxy": self.access.proxy} if self.access.proxy else {}
        if shown.tls is not None:
            made |= {"ssl": shown.tls, "server_hostname": self.access.server_name}
        return made

    def _reaching(self) -> "_Reaching":
        return _Reaching(self.where, urlsplit(self.access.server).hostname or "")

    @asynccontextmanager
    async def streaming(self, path: str, params: Mapping[str, str], *, what: str, longest_s: float) -> "AsyncGenerator[Any]":
        """The body of a long answer (aiohttp's StreamReader): a watch's."""
        from aiohttp import ClientTimeout  # noqa: PLC0415 - as above

        timeout = ClientTimeout(total=longest_s, sock_connect=_CONNECT_S)
        async with self._answer("GET", path, params=params, body=None, content_type=_JSON, timeout=timeout) as response:
            if response.status >= 400:
                raise refusal(response.status, _decoded(await response.read()), what=what, where=self.where)
            try:
                yield response.content
            finally:
                # aiohttp's close says goodbye, on TLS for as long as nobody answers; there is nothing left to say.
                if response.connection is not None and response.connection.transport is not None:
                    response.connection.transport.abort()

    # ---- verbs

    def path(self, resource: str, name: str = "", *, group: str = "") -> str:
        """Of a resource in our namespace, `pods` say; `group`: as in `networking.k8s.io/v1`."""
        root = f"/apis/{group}" if group else "/api/v1"
        return f"{root}/namespaces/{self.namespace}/{resource}" + (f"/{name}" if name else "")

    async def create(self, resource: str, body: object, *, group: str = "") -> Object:
        """`Conflict` if one of this name is there."""
        await self.open()
        return (await self.request("POST", self.path(resource, group=group), what=f"create {resource}", body=body))[1]

    async def get(self, resource: str, name: str, *, group: str = "") -> Object | None:
        """None if it is not there."""
        await self.open()
        path = self.path(resource, name, group=group)
        status, answer = await self.request("GET", path, what=f"get {resource}", accept=(404,))
        return None if status == 404 else answer

    async def list(
        self, resource: str, *, labels: str = "", fields: str = "", group: str = "", limit: int | None = None
    ) -> Object:
        """The list as it is; its `items` are the objects, the first `limit` of them."""
        await self.open()
        given = (("labelSelector", labels), ("fieldSelector", fields), ("limit", "" if limit is None else str(limit)))
        params = {key: value for key, value in given if value}
        return (await self.request("GET", self.path(resource, group=group), what=f"list {resource}", params=params))[1]

    async def patch(self, resource: str, name: str, body: object, *, group: str = "") -> Object:
        """A merge patch. A `metadata.uid` in it must be the object's, or it is a Conflict; `Gone` if there is none."""
        await self.open()
        path = self.path(resource, name, group=group)
        return (await self.request("PATCH", path, what=f"patch {resource}", body=body, content_type=_MERGE))[1]

    async def delete(
        self, resource: str, name: str, *, uid: str | None = None, version: str | None = None, group: str = ""
    ) -> Object | None:
        """At once, without grace; what the server says of it. None: there was none of this name, UID and resourceVersion."""
        await self.open()
        only = {key: value for key, value in (("uid", uid), ("resourceVersion", version)) if value}
        body: Object = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
        if only:
            body["preconditions"] = only
        path = self.path(resource, name, group=group)
        status, answer = await self.request("DELETE", path, what=f"delete {resource}", body=body, accept=(404, 409))
        return answer if status < 400 else None

    async def version(self) -> str:
        return str((await self.request("GET", "/version", what="get the version"))[1].get("gitVersion", ""))

    async def exec(
        self, pod: str, container: str, argv: Sequence[str], *, stdin: bool = True, tty: bool = False
    ) -> "ExecStream":
        """Start a program in a container and take its stream."""
        from excise.substrates.kubernetes.stream import open_exec  # noqa: PLC0415 - as above

        await self.open()
        assert self._streams is not None
        shown = await self._shown()
        with self._reaching():
            return await open_exec(
                self._streams,
                self.access.server + self.path("pods", pod) + "/exec",
                container=container,
                argv=argv,
                stdin=stdin,
                tty=tty,
                headers=shown.headers,
                where=self.where,
                to=self._to(shown),
            )

    async def close(self) -> None:
        sessions, self._session, self._streams = (self._session, self._streams), None, None
        for session in sessions:
            if session is not None:
                await session.close()


class _Reaching:
    """Sorts what keeps us from the server; a context manager, twice as cheap as a generator on every request."""

    def __init__(self, where: str, host: str) -> None:
        self._where = where
        self._host = host

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        from aiohttp import ClientConnectorCertificateError, ClientError, ClientHttpProxyError  # noqa: PLC0415 - as above

        if isinstance(error, ClientConnectorCertificateError):
            raise Unauthorized(
                f"the kubeconfig does not trust the certificate of the server at {self._where} ({error.certificate_error}): "
                "renew the kubeconfig's certificate-authority"
            ) from None
        if isinstance(error, ClientHttpProxyError):
            raise Unreachable(f"the kubeconfig's proxy-url does not let us to {self._where}: {error.message}") from None
        if isinstance(error, TimeoutError):  # aiohttp's own: the caller's deadline cancels
            raise Unreachable(
                f"the API server at {self._where} does not answer: is it there, and reachable from here?"
            ) from None
        if isinstance(error, ClientError | OSError):
            raise Unreachable(
                f"no API server answers at {self._where} ({_words(error)}): start the cluster, or name another with context="
            ) from None


def _words(error: Exception) -> str:
    """Without the address, which is said already, nor the objects that aiohttp puts into its texts."""
    cause = getattr(error, "os_error", error)
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__


def _small_socket(address: Sequence[Any]) -> socket.socket:
    made = socket.socket(*address[:3])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _UNREAD_BYTES)
    made.setblocking(False)
    return made


def _decoded(text: bytes) -> Object:
    try:
        answer: Any = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return {"message": text.decode("utf-8", "replace").strip()}
    return cast(Object, answer) if isinstance(answer, dict) else {}


def _log(sentence: str) -> None:
    logging.getLogger("excise").warning(sentence)
