"""Where the cluster is and who we are there: a kubeconfig, several merged as kubectl merges them, or the pod we run in."""

import base64
import binascii
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from excise.errors import SpecError

_IN_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_REMEDY = "set KUBECONFIG, or say kubernetes?kubeconfig=FILE"
_LISTS = ("clusters", "contexts", "users")
_EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


class _ExecFile(msgspec.Struct, rename="camel"):
    api_version: str | None = None
    command: str | None = None
    args: list[Any] | None = None
    env: list[dict[str, Any]] | None = None
    install_hint: str | None = None
    provide_cluster_info: bool | None = None
    interactive_mode: str | None = None


class _ClusterFile(msgspec.Struct, rename="kebab"):
    server: str | None = None
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    tls_server_name: str | None = None
    proxy_url: str | None = None
    insecure_skip_tls_verify: bool | None = None


class _UserFile(msgspec.Struct, rename="kebab"):
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    token: str | None = None
    token_file: str | None = msgspec.field(default=None, name="tokenFile")
    username: str | None = None
    password: str | None = None
    as_: str | None = msgspec.field(default=None, name="as")
    as_uid: str | None = None
    as_groups: list[str] | None = None
    as_user_extra: dict[str, list[str]] | None = None
    auth_provider: dict[str, Any] | None = None
    exec: _ExecFile | None = None


class _ContextFile(msgspec.Struct):
    cluster: str | None = None
    user: str | None = None
    namespace: str | None = None


class _Named(msgspec.Struct):
    """An entry of any of the three lists."""

    name: str
    cluster: _ClusterFile | None = None
    user: _UserFile | None = None
    context: _ContextFile | None = None


class _File(msgspec.Struct, rename="kebab"):
    """What of a kubeconfig is read, as it must be; all else in it is not looked at."""

    current_context: str | None = None
    clusters: list[_Named] | None = None
    contexts: list[_Named] | None = None
    users: list[_Named] | None = None


class Plugin(msgspec.Struct, frozen=True, kw_only=True):
    """A program that prints credentials."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    version: str = _EXEC_VERSIONS[0]
    cluster: Mapping[str, Any] | None = None
    """What it is told of the cluster, if it asks for that."""
    hint: str = ""
    """How to install it."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """How we show who we are. Of a kind that is there both as a file and as data, the data is what counts."""

    certificate: bytes | Path | None = None
    key: bytes | Path | None = None
    token: str | None = None
    token_file: Path | None = None
    """Read again when it changes."""
    basic: tuple[str, str] | None = None
    plugin: Plugin | None = None
    headers: tuple[tuple[str, str], ...] = ()
    """Whom to act as."""

    def __repr__(self) -> str:
        return "Identity(***)"


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster, who we are in it, and who said so."""

    server: str
    named_by: str
    """For error texts: the file and context, or the pod."""
    namespace: str = "default"
    authority: bytes | Path | None = None
    verify: bool = True
    server_name: str | None = None
    proxy: str | None = None
    identity: Identity = Identity()


def resolve(kubeconfig: str | None = None, context: str | None = None, environ: Mapping[str, str] = os.environ) -> Access:
    """What `kubeconfig`, else KUBECONFIG, else ~/.kube/config, else the pod we run in, says of the context."""
    paths, named_by = _paths(kubeconfig, environ)
    held = [_read(path) for path in paths if kubeconfig or path.exists()]
    if not held:
        inside = None if context else _in_pod(environ)
        if inside is not None:
            return inside
        looked = ", ".join(str(path) for path in paths)
        raise SpecError(f"there is no kubeconfig ({named_by}: {looked}): {_REMEDY}")
    merged = _merged(held)
    name = context or merged["current-context"]
    if not name:
        raise SpecError(f"{named_by} has no current-context: `kubectl config use-context NAME`, or say kubernetes?context=NAME")
    chosen = _entry(merged, "contexts", name, "context", named_by)
    cluster = _entry(merged, "clusters", chosen.get("cluster") or "", "cluster", f"context {name!r} of {named_by}")
    user: dict[str, Any] = {}
    if chosen.get("user"):
        user = _entry(merged, "users", chosen["user"], "user", f"context {name!r} of {named_by}")
    return _access(cluster, user, chosen.get("namespace") or "default", f"context {name!r} of {named_by}")


def _paths(kubeconfig: str | None, environ: Mapping[str, str]) -> tuple[list[Path], str]:
    if kubeconfig:
        return [Path(kubeconfig).expanduser()], kubeconfig
    several = [Path(part).expanduser() for part in environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    if several:
        return several, "KUBECONFIG"
    home = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
    return [home / ".kube" / "config"], "~/.kube/config"


def _read(path: Path) -> dict[str, Any]:
    """A kubeconfig, its relative paths made absolute: they are relative to the file, not to where we run."""
    try:
        import yaml  # noqa: PLC0415 - an extra: who has no cluster does not need it
    except ImportError:
        raise SpecError("a kubeconfig is YAML, and PyYAML is missing: `pip install 'excise[kubernetes]'`") from None
    try:
        loaded: Any = yaml.safe_load(path.read_text()) or {}
        msgspec.convert(loaded, _File)
    except OSError as error:
        raise SpecError(f"the kubeconfig {path} cannot be read ({error.strerror}): {_REMEDY}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SpecError(f"the kubeconfig {path} is not YAML: {' '.join(str(error).split())}") from None
    except msgspec.ValidationError as error:
        raise SpecError(f"the kubeconfig {path} is no kubeconfig ({error}): make it again, or mend it") from None
    held = cast("dict[str, Any]", loaded)
    for kind in _LISTS:
        held[kind] = [_absolute(entry, path.absolute()) for entry in held.get(kind) or ()]
    return held


def _absolute(named: dict[str, Any], path: Path) -> dict[str, Any]:
    for kind in ("cluster", "user"):
        body: dict[str, Any] = named.get(kind) or {}
        for field in ("certificate-authority", "client-certificate", "client-key", "tokenFile"):
            if body.get(field):
                body[field] = str(path.parent / body[field])
        plugin: dict[str, Any] = body.get("exec") or {}
        if "/" in (plugin.get("command") or ""):
            plugin["command"] = str(path.parent / plugin["command"])
    return named


def _merged(held: list[dict[str, Any]]) -> dict[str, Any]:
    """Of two entries of one name the first counts, and so does the first current-context."""
    merged: dict[str, Any] = {"current-context": ""}
    for one in held:
        merged["current-context"] = merged["current-context"] or one.get("current-context") or ""
        for kind in _LISTS:
            for entry in one[kind]:
                merged.setdefault(kind, {}).setdefault(entry["name"], entry)
    return merged


def _entry(merged: Mapping[str, Any], kind: str, name: str, word: str, named_by: str) -> dict[str, Any]:
    known: dict[str, Any] = merged.get(kind) or {}
    if name not in known:
        raise SpecError(f"{named_by} names no {word} {name!r}; there are: {', '.join(sorted(known)) or 'none'}")
    return known[name].get(word) or {}


def _access(cluster: Mapping[str, Any], user: Mapping[str, Any], namespace: str, named_by: str) -> Access:
    server: str = cluster.get("server") or ""
    if not server.startswith(("http://", "https://")):
        raise SpecError(f"{named_by} names the server {server!r}; one looks like https://host:6443")
    return Access(
        server=server.rstrip("/"),
        named_by=named_by,
        namespace=namespace,
        authority=_material(cluster, "certificate-authority", named_by),
        verify=not cluster.get("insecure-skip-tls-verify", False),
        server_name=cluster.get("tls-server-name") or None,
        proxy=_proxy(cluster.get("proxy-url"), named_by),
        identity=_identity(user, cluster, named_by),
    )


def _proxy(url: str | None, named_by: str) -> str | None:
    if url and not url.startswith(("http://", "https://")):
        raise SpecError(f"{named_by} has the proxy-url {url!r}, and only http and https proxies are built: use such a one")
    return url or None


def _material(entry: Mapping[str, Any], field: str, named_by: str) -> bytes | Path | None:
    data, path = entry.get(f"{field}-data"), entry.get(field)
    if data:
        try:
            return base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError, TypeError):
            raise SpecError(f"{named_by}: {field}-data is not base64; make the kubeconfig again") from None
    return Path(path) if path else None


def _identity(user: Mapping[str, Any], cluster: Mapping[str, Any], named_by: str) -> Identity:
    if user.get("auth-provider"):
        name = user["auth-provider"].get("name")
        raise SpecError(
            f"{named_by} uses the auth-provider {name!r}, which Kubernetes has dropped: use an exec plugin or a token"
        )
    return Identity(
        certificate=_material(user, "client-certificate", named_by),
        key=_material(user, "client-key", named_by),
        token=user.get("token") or None,
        token_file=Path(user["tokenFile"]) if user.get("tokenFile") else None,
        basic=(str(user["username"]), str(user.get("password") or "")) if user.get("username") else None,
        plugin=_plugin(user["exec"], cluster, named_by) if user.get("exec") else None,
        headers=_impersonation(user),
    )


def _impersonation(user: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    made = [("Impersonate-User", str(user["as"]))] if user.get("as") else []
    made += [("Impersonate-Uid", str(user["as-uid"]))] if user.get("as-uid") else []
    made += [("Impersonate-Group", str(group)) for group in user.get("as-groups") or ()]
    extra: Mapping[str, list[str]] = user.get("as-user-extra") or {}
    return (*made, *((f"Impersonate-Extra-{key}", value) for key, values in extra.items() for value in values))


def _plugin(entry: Mapping[str, Any], cluster: Mapping[str, Any], named_by: str) -> Plugin:
    version = entry.get("apiVersion") or ""
    if version not in _EXEC_VERSIONS:
        raise SpecError(f"{named_by} has an exec plugin of apiVersion {version!r}; there are: {', '.join(_EXEC_VERSIONS)}")
    if entry.get("interactiveMode") == "Always":
        raise SpecError(f"{named_by} has an exec plugin that wants a terminal (interactiveMode Always): sign in with it first")
    return Plugin(
        command=entry.get("command") or "",
        args=tuple(str(word) for word in entry.get("args") or ()),
        env={str(pair.get("name")): str(pair.get("value")) for pair in entry.get("env") or ()},
        version=version,
        cluster=dict(cluster) if entry.get("provideClusterInfo") else None,
        hint=" ".join((entry.get("installHint") or "").split()),
    )


def _in_pod(environ: Mapping[str, str], place: Path = _IN_POD) -> Access | None:
    """The service account of the pod we run in, if we run in one that has it."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (place / "token").exists():
        return None
    namespace = place / "namespace"
    return Access(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        named_by="the service account of this pod",
        namespace=namespace.read_text().strip() if namespace.exists() else "default",
        authority=place / "ca.crt",
        identity=Identity(token_file=place / "token"),
    )
