"""What a request carries to show who we are: certificates, tokens (read again when they change), exec plugins' words."""

import asyncio
import base64
import os
import signal
import ssl
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from excise.errors import SpecError, SubstrateError
from excise.substrates.kubernetes.kubeconfig import Access, Plugin

_PLUGIN_S = 60.0
_EARLY_S = 30.0
"""A credential is taken for over this long before it is: a request is under way for a while."""


class Shown(msgspec.Struct, frozen=True):
    """For one request: its headers, and the TLS context (None where the server has no TLS)."""

    headers: tuple[tuple[str, str], ...]
    tls: ssl.SSLContext | None


class _Printed(msgspec.Struct, frozen=True):
    """What a plugin printed."""

    token: str | None = None
    certificate: bytes | None = None
    key: bytes | None = None
    until_s: float | None = None


class Credentials:
    """Of one client. Asked before every request; nothing is read or run that is still good."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._identity = access.identity
        self._printed: _Printed | None = None
        self._running = asyncio.Lock()
        self._token: tuple[tuple[int, int], str] | None = None
        self._tls: ssl.SSLContext | None = None

    async def current(self) -> Shown:
        plugin = self._identity.plugin
        if plugin is not None and _is_over(self._printed):
            async with self._running:  # thirty-two creates at once run it once
                if _is_over(self._printed):
                    self._printed, self._tls = await _run(plugin), None
        return Shown(self._headers(), self._context())

    def refused(self) -> bool:
        """The server did not take them (401). True: another try shows new ones."""
        again = self._printed is not None
        self._printed = None
        return again

    def _headers(self) -> tuple[tuple[str, str], ...]:
        token = (self._printed.token if self._printed else None) or self._from_file() or self._identity.token
        made: list[tuple[str, str]] = []
        if token:
            made = [("Authorization", f"Bearer {token}")]
        elif self._identity.basic is not None:
            made = [("Authorization", "Basic " + base64.b64encode(":".join(self._identity.basic).encode()).decode())]
        return (*made, *self._identity.headers)

    def _from_file(self) -> str | None:
        """A projected token is replaced every hour or so: its file's time tells."""
        path = self._identity.token_file
        if path is None:
            return None
        try:
            status = path.stat()
            seen = (status.st_mtime_ns, status.st_ino)
            if self._token is None or self._token[0] != seen:
                self._token = (seen, path.read_text().strip())
        except OSError as error:
            raise SpecError(f"the token file {path} ({self._access.named_by}) cannot be read: {error.strerror}") from None
        return self._token[1]

    def _context(self) -> ssl.SSLContext | None:
        if self._tls is None and self._access.server.startswith("https://"):
            certificate, key = self._identity.certificate, self._identity.key
            if self._printed is not None and self._printed.certificate is not None:
                certificate, key = self._printed.certificate, self._printed.key
            self._tls = _context(self._access, certificate, key)
        return self._tls


def _context(access: Access, certificate: bytes | Path | None, key: bytes | Path | None) -> ssl.SSLContext:
    try:
        authority = access.authority
        context = ssl.create_default_context(
            cafile=authority if isinstance(authority, Path) else None,
            cadata=authority.decode() if isinstance(authority, bytes) else None,
        )
        if certificate is not None:
            _show(context, certificate, key)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        raise SpecError(f"the certificates of {access.named_by} do not load: {error}; make the kubeconfig again") from None
    if not access.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _show(context: ssl.SSLContext, certificate: bytes | Path, key: bytes | Path | None) -> None:
    """ssl loads a client's certificate from files only: data goes through a directory that only we can read."""
    with tempfile.TemporaryDirectory(prefix="excise-tls-") as place:

        def path_of(material: bytes | Path | None, name: str) -> Path | None:
            if not isinstance(material, bytes):
                return material
            path = Path(place, name)
            path.write_bytes(material)
            return path

        chain = path_of(certificate, "certificate")
        assert chain is not None
        context.load_cert_chain(chain, path_of(key, "key"))


def _is_over(printed: _Printed | None) -> bool:
    if printed is None:
        return True
    return printed.until_s is not None and datetime.now(UTC).timestamp() > printed.until_s - _EARLY_S


async def _run(plugin: Plugin) -> _Printed:
    """Run an exec plugin, which says in JSON what to show."""
    spec: dict[str, Any] = {"interactive": False}
    if plugin.cluster is not None:
        spec["cluster"] = _told(plugin.cluster)
    info = {"kind": "ExecCredential", "apiVersion": plugin.version, "spec": spec}
    env = {**os.environ, **plugin.env, "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode()}
    hint = f": {plugin.hint}" if plugin.hint else ""
    try:
        process = await asyncio.create_subprocess_exec(
            plugin.command,
            *plugin.args,
            env=env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # so that what it starts ends with it: asyncio waits until all have let go of its pipes
        )
    except OSError as error:
        raise SpecError(f"the kubeconfig's exec plugin {plugin.command} cannot be run ({error.strerror}){hint}") from None
    try:
        async with asyncio.timeout(_PLUGIN_S):
            printed, said = await process.communicate()
    except TimeoutError:
        raise SubstrateError(f"the kubeconfig's exec plugin {plugin.command} did not end in {_PLUGIN_S:g} s{hint}") from None
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode:
        words = " ".join(said.decode("utf-8", "replace").split())[-500:]
        raise SubstrateError(f"the kubeconfig's exec plugin {plugin.command} failed ({process.returncode}): {words}{hint}")
    return _parsed(printed, plugin.command)


def _told(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """The cluster, in the words of client.authentication.k8s.io."""
    names = ("server", "tls-server-name", "insecure-skip-tls-verify", "certificate-authority-data", "proxy-url")
    return {name: cluster[name] for name in names if cluster.get(name)}


def _parsed(printed: bytes, command: str) -> _Printed:
    try:
        status: dict[str, Any] = msgspec.json.decode(printed)["status"]
        until: str | None = status.get("expirationTimestamp")
        made = _Printed(
            token=status.get("token"),
            certificate=_encoded(status.get("clientCertificateData")),
            key=_encoded(status.get("clientKeyData")),
            until_s=datetime.fromisoformat(until).timestamp() if until else None,
        )
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, AttributeError):
        # What it printed may be a credential, so no word of it is shown.
        raise SubstrateError(f"the kubeconfig's exec plugin {command} printed no ExecCredential: run it by hand") from None
    if made.token is None and made.certificate is None:
        raise SubstrateError(f"the kubeconfig's exec plugin {command} gave neither a token nor a certificate: sign in again")
    return made


def _encoded(text: str | None) -> bytes | None:
    return text.encode() if text else None
