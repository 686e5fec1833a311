"""An image as a registry has it, planned: its manifest and configuration are here, its layers are not."""

from excise.errors import SpecError
from excise.storage.oci import credentials, documents
from excise.storage.oci.reference import parse
from excise.storage.oci.registry import STALL_S, BlobSource, Registry


def plan(name: str, stall_s: float = STALL_S) -> documents.ImagePlan:
    """What it takes to have `name`. Blocking."""
    reference = parse(name)
    known = credentials.find(reference.registry)
    registry = Registry(reference, known, stall_s)
    body, _ = registry.manifest(reference.digest or reference.tag or "latest")
    manifest = documents.single(body, str(reference), lambda one: registry.manifest(one.digest)[0])
    assert manifest.config is not None
    config = registry.small_blob(manifest.config.digest, manifest.config.size)
    for layer in manifest.layers:
        if layer.size < 0:
            raise SpecError(f"{reference} has a layer of fewer than no bytes: it is damaged")
    sources = [
        (BlobSource(reference, layer.digest, layer.size, known, stall_s), layer.digest, layer.size) for layer in manifest.layers
    ]
    return documents.plan(str(reference), config, sources)
