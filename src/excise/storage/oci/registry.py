"""A registry, by the distribution API: manifests and blobs, with tokens, redirects, proxies, and a deadline for silence.

Blocking, for threads and the workers that unpack: a layer's bytes then never pass through the user's process.
"""

import base64
import hashlib
import http.client
import json
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import msgspec

from excise.errors import ExciseError, SpecError, SubstrateError
from excise.storage.oci.credentials import Credentials
from excise.storage.oci.reference import Reference

STALL_S = 30.0
_LEAST_BYTES = 4096
"""Fewer than these while a registry might say nothing at all is nothing at all."""
_CHUNK_BYTES = 1 << 18
_MOST_MANIFEST_BYTES = 8 << 20
_RESUMES = 8
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_MANIFESTS = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_BROKEN = (OSError, http.client.HTTPException)


class BlobSource(msgspec.Struct, frozen=True, tag="blob"):
    """A blob of a registry, as a worker is told of it."""

    reference: Reference
    digest: str
    size: int
    credentials: Credentials | None = None
    stall_s: float = STALL_S

    def chunks(self, resumed: Callable[[str], None] = lambda _: None) -> Iterator[bytes]:
        return Registry(self.reference, self.credentials, self.stall_s).blob(self.digest, self.size, resumed)


class Registry:
    """One repository of one registry, and the token it gave."""

    def __init__(self, reference: Reference, credentials: Credentials | None, stall_s: float = STALL_S) -> None:
        self._reference = reference
        self._credentials = credentials
        self._stall_s = stall_s
        self._authorization: str | None = None

    def manifest(self, name: str) -> tuple[bytes, str]:
        """The manifest with this tag or digest, checked, and its digest."""
        with self._get(f"manifests/{name}", {"Accept": _MANIFESTS}) as answer:
            body = self._whole(answer)
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        said = answer.headers.get("Docker-Content-Digest")
        if (name.startswith("sha256:") and name != digest) or (said and said.startswith("sha256:") and said != digest):
            raise SubstrateError(
                f"{self._reference.registry} sent a manifest that is not {said or name}: pull again, or tell its owner"
            )
        return body, digest

    def small_blob(self, digest: str, size: int) -> bytes:
        """A blob of configuration, checked."""
        if not 0 <= size <= _MOST_MANIFEST_BYTES:
            raise SpecError(f"{self._reference} has a configuration of {size} bytes: it is no image")
        body = b"".join(self.blob(digest, size, lambda _: None))
        if f"sha256:{hashlib.sha256(body).hexdigest()}" != digest:
            raise wrong_digest(str(self._reference), digest)
        return body

    def blob(self, digest: str, size: int, resumed: Callable[[str], None]) -> Iterator[bytes]:
        """A blob's bytes. A connection that breaks is taken up where it broke, as long as each brings something."""
        at = 0
        for attempt in range(_RESUMES + 1):
            began = at
            try:
                for chunk in self._pieces(digest, at, size):
                    at += len(chunk)
                    yield chunk
                if at == size:
                    return
                raise http.client.IncompleteRead(b"", size - at)
            except _BROKEN as error:
                if isinstance(error, TimeoutError) or at == began or attempt == _RESUMES:
                    raise self._broken(error, f"at byte {at} of {size} of {digest[:19]}") from None
                resumed(f"{digest[:19]} broke at byte {at}, resumed")

    def _pieces(self, digest: str, at: int, size: int) -> Iterator[bytes]:
        with self._get(f"blobs/{digest}", {"Range": f"bytes={at}-"} if at else {}) as answer:
            skip = at if answer.status == http.client.OK else 0  # a registry without ranges sends it all again
            since, got = time.monotonic(), 0
            while chunk := answer.read1(_CHUNK_BYTES):
                got += len(chunk)
                if time.monotonic() - since > self._stall_s:
                    if got < _LEAST_BYTES:
                        raise TimeoutError
                    since, got = time.monotonic(), 0
                if skip:
                    skip, chunk = max(0, skip - len(chunk)), chunk[skip:]
                at += len(chunk)
                if at > size:
                    raise SpecError(f"{digest} is longer than the {size} bytes its manifest says: it is not what was asked for")
                if chunk:
                    yield chunk

    # ---- requests

    def _get(self, path: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        url = f"{self._reference.address}/v2/{self._reference.path}/{path}"
        try:
            return self._open(url, headers, self._authorization)
        except urllib.error.HTTPError as error:
            with error:
                if error.code != http.client.UNAUTHORIZED:
                    self._refused(error, path)
                challenge = error.headers.get("WWW-Authenticate", "")
        self._authorization = self._authorize(challenge)
        try:
            return self._open(url, headers, self._authorization)
        except urllib.error.HTTPError as error:
            with error:
                self._refused(error, path)

    def _open(self, url: str, headers: dict[str, str], authorization: str | None) -> http.client.HTTPResponse:
        request = urllib.request.Request(url, headers={"User-Agent": "excise", **headers})  # noqa: S310 - http or https, by Reference
        if authorization:
            request.add_unredirected_header("Authorization", authorization)  # not for whom the registry sends us to
        try:
            return urllib.request.urlopen(request, timeout=self._stall_s)  # noqa: S310 - as above
        except urllib.error.HTTPError:
            raise
        except urllib.error.URLError as error:
            reason = error.reason
            raise self._broken(reason if isinstance(reason, Exception) else OSError(reason), "before it answered") from None
        except _BROKEN as error:
            raise self._broken(error, "before it answered") from None

    def _authorize(self, challenge: str) -> str:
        scheme, _, rest = challenge.partition(" ")
        known = self._credentials
        basic = None
        if known is not None and known.user:
            basic = "Basic " + base64.b64encode(f"{known.user}:{known.secret}".encode()).decode()
        if scheme.lower() == "basic":
            if basic is None:
                raise self._denied("asks for credentials")
            return basic
        fields = dict(_CHALLENGE.findall(rest))
        realm = fields.get("realm", "")
        if scheme.lower() != "bearer" or not realm.startswith(("https://", "http://")):
            raise SubstrateError(
                f"{self._reference.registry} asks for an authentication Excise does not know ({scheme or 'none'})"
            )
        if realm.startswith("http://") and self._reference.address.startswith("https://"):
            raise SubstrateError(f"{self._reference.registry} asks to send credentials without TLS: that is refused")
        return f"Bearer {self._token(realm, fields, basic)}"

    def _token(self, realm: str, fields: dict[str, str], basic: str | None) -> str:
        asked = {key: fields[key] for key in ("service", "scope") if key in fields}
        asked.setdefault("scope", f"repository:{self._reference.path}:pull")
        try:
            if self._credentials is not None and not self._credentials.user:  # an identity token is exchanged by a form
                form = {
                    **asked,
                    "grant_type": "refresh_token",
                    "refresh_token": self._credentials.secret,
                    "client_id": "excise",
                }
                request = urllib.request.Request(realm, data=urllib.parse.urlencode(form).encode())  # noqa: S310 - checked above
                answer = urllib.request.urlopen(request, timeout=self._stall_s)  # noqa: S310 - as above
            else:
                answer = self._open(f"{realm}?{urllib.parse.urlencode(asked)}", {}, basic)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in (http.client.UNAUTHORIZED, http.client.FORBIDDEN, http.client.BAD_REQUEST):
                raise self._denied(
                    "refused the credentials" if self._credentials else "gives no token without credentials"
                ) from None
            raise SubstrateError(f"{self._reference.registry}'s token server answered {error.code}: try again later") from None
        with answer:
            try:
                found: Any = json.loads(self._whole(answer))
            except ValueError:
                found = None
        token = (found.get("token") or found.get("access_token")) if isinstance(found, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        if not isinstance(token, str):
            raise SubstrateError(f"{self._reference.registry}'s token server answered without a token: try again later")
        return token

    def _whole(self, answer: http.client.HTTPResponse) -> bytes:
        try:
            body = answer.read(_MOST_MANIFEST_BYTES + 1)
        except _BROKEN as error:
            raise self._broken(error, "in its answer") from None
        if len(body) > _MOST_MANIFEST_BYTES:
            raise SpecError(f"{self._reference} has a manifest of more than {_MOST_MANIFEST_BYTES >> 20} MiB: it is no image")
        return body

    # ---- what went wrong, for whom

    def _refused(self, error: urllib.error.HTTPError, path: str) -> NoReturn:
        registry = self._reference.registry
        if error.code in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
            raise self._denied("refused the credentials" if self._credentials else "asks for credentials") from None
        if error.code == http.client.NOT_FOUND:
            what = "has no image" if path.startswith("manifests/") else f"has lost {path} of"
            raise SpecError(f"{registry} {what} {self._reference}: check its name and tag") from None
        if error.code == http.client.TOO_MANY_REQUESTS:
            raise SubstrateError(
                f"{registry} says too many images were pulled: wait, or run `docker login {registry}`"
            ) from None
        raise SubstrateError(f"{registry} answered {error.code} for {self._reference}: try again later") from None

    def _denied(self, what: str) -> SpecError:
        return SpecError(
            f"{self._reference.registry} {what} for {self._reference.path}: run `docker login {self._reference.registry}`"
        )

    def _broken(self, error: Exception, where: str) -> ExciseError:
        registry = self._reference.registry
        if isinstance(error, ExciseError):
            return error
        if isinstance(error, TimeoutError):
            return SubstrateError(
                f"{registry} said nothing for {self._stall_s:g} s {where}: pull again, what is there already is kept"
            )
        if isinstance(error, ssl.SSLError):
            return SubstrateError(
                f"{registry} has no TLS we trust ({error.reason or error}): add its authority to this machine's"
            )
        if isinstance(error, ConnectionRefusedError):
            return SubstrateError(f"nothing answers at {self._reference.address}: check the name, or start the registry")
        reason = " ".join(str(error).split()) or type(error).__name__
        return SubstrateError(f"{registry} broke off {where} ({reason}): pull again, what is there already is kept")


def wrong_digest(named: str, digest: str) -> SubstrateError:
    return SubstrateError(f"{named}: what came is not {digest}: pull again, and tell the registry's owner if it stays so")
