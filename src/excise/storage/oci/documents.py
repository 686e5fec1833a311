"""What manifests and configurations of images say, in OCI's words and Docker's: which layers, and how programs are started."""

import hashlib
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from excise.errors import SpecError
from excise.storage.layers.jobs import Source

T = TypeVar("T")
_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}
_MOST_LAYERS = 1000


class Platform(msgspec.Struct, frozen=True):
    """What a manifest of an index is for."""

    architecture: str = ""
    os: str = ""


class Descriptor(msgspec.Struct, frozen=True, rename="camel"):
    """A blob by its digest."""

    digest: str
    size: int
    media_type: str = ""
    platform: Platform | None = None
    annotations: Mapping[str, str] | None = None


class Manifest(msgspec.Struct, frozen=True, rename="camel"):
    """A manifest or an index: they share what tells them apart."""

    media_type: str = ""
    schema_version: int = 2
    config: Descriptor | None = None
    layers: tuple[Descriptor, ...] = ()
    manifests: tuple[Descriptor, ...] = ()


class _Process(msgspec.Struct, frozen=True):
    Env: tuple[str, ...] | None = None
    WorkingDir: str = ""
    User: str = ""


class _RootFs(msgspec.Struct, frozen=True):
    diff_ids: tuple[str, ...] | None = None


class Config(msgspec.Struct, frozen=True):
    """An image's configuration, as much of it as we use."""

    architecture: str = ""
    os: str = ""
    config: _Process | None = None
    rootfs: _RootFs = _RootFs()


class LayerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A layer, and where it comes from."""

    diff_id: str
    source: Source
    digest: str | None = None
    """Of the bytes of `source`."""
    size_bytes: int = 0


class ImagePlan(msgspec.Struct, frozen=True, kw_only=True):
    """An image, before it is here."""

    name: str
    digest: str
    """Of its configuration, which names its layers: the same however it came."""
    env: Mapping[str, str]
    workdir: str
    user: str | None
    layers: tuple[LayerPlan, ...]
    """The lowest first."""


def manifest(body: bytes, named: str) -> Manifest:
    """What the bytes of a manifest or index say."""
    found = _decode(body, Manifest, f"{named} has a manifest")
    if found.schema_version != 2:
        raise SpecError(f"{named} is an image of the first schema, from before 2017: have it pushed again by a current Docker")
    for descriptor in (*found.layers, *found.manifests, *((found.config,) if found.config else ())):
        check_digest(descriptor.digest, named)
    return found


def check_digest(digest: str, named: str) -> None:
    if not _DIGEST.fullmatch(digest):
        raise SpecError(f"{named} names {digest[:100]!r}, which is no sha256 digest: it is no image Excise can use")


def single(body: bytes, named: str, fetch: Callable[[Descriptor], bytes]) -> Manifest:
    """The manifest that `body` is, or of an index that it is, the one for this machine."""
    found = manifest(body, named)
    for _ in range(2):  # an index may hold an index; more is nobody's image
        if found.media_type not in _INDEXES and not found.manifests:
            break
        found = manifest(fetch(_chosen(found.manifests, named)), named)
    if found.config is None or not found.layers:
        raise SpecError(f"{named} is no image with layers: it may be a chart, a signature or another artifact")
    return found


def _chosen(manifests: Sequence[Descriptor], named: str) -> Descriptor:
    wanted = _MACHINES.get(platform.machine(), platform.machine())
    images = [one for one in manifests if one.platform is None or one.platform.os != "unknown"]
    for one in images:
        if one.platform is not None and (one.platform.os, one.platform.architecture) == ("linux", wanted):
            return one
    if len(images) == 1 and images[0].platform is None:
        return images[0]
    there = ", ".join(sorted({f"{one.platform.os}/{one.platform.architecture}" for one in images if one.platform})) or "nothing"
    raise SpecError(f"{named} has no image for linux/{wanted}; it has: {there}")


def plan(name: str, config_body: bytes, sources: Sequence[tuple[Source, str | None, int]]) -> ImagePlan:
    """An image of this configuration; `sources` has for each layer where it is, its digest there and its size."""
    config = _decode(config_body, Config, f"{name} has a configuration")
    diff_ids = config.rootfs.diff_ids or ()
    for diff_id in diff_ids:
        check_digest(diff_id, name)
    if len(diff_ids) != len(sources) or len(diff_ids) > _MOST_LAYERS:
        raise SpecError(f"{name} has {len(sources)} layers, and {len(diff_ids)} in its configuration: it is damaged")
    process = config.config or _Process()
    pairs = (text.partition("=") for text in process.Env or ())
    return ImagePlan(
        name=name,
        digest=f"sha256:{hashlib.sha256(config_body).hexdigest()}",
        env={variable: value for variable, _, value in pairs if variable},
        workdir=process.WorkingDir or "/",
        user=process.User or None,
        layers=tuple(
            LayerPlan(diff_id=diff_id, source=source, digest=digest, size_bytes=size)
            for diff_id, (source, digest, size) in zip(diff_ids, sources, strict=True)
        ),
    )


def _decode(body: bytes, kind: type[T], what: str) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise SpecError(f"{what} that says something else than one does: {error}") from None
