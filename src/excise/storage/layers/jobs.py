"""What a worker is asked to do with trees, and what it says: frames of JSON between a process of ours and the user's."""

import msgspec

from excise.storage.oci.registry import BlobSource
from excise.storage.oci.streams import FileSource, Limits

Source = FileSource | BlobSource


class Unpack(msgspec.Struct, frozen=True, tag="unpack", kw_only=True):
    """Unpack a layer into the directory `making`, which is ours: tree/, entries and layer.json."""

    source: Source
    making: str
    digest: str | None = None
    """What the bytes as they come must be."""
    diff_id: str | None = None
    """What the tar must be."""
    named: str
    complete: tuple[tuple[str, int], ...] = ()
    """Directories that are there afterwards even if the tar had none, with their modes."""
    limits: Limits = Limits()


class View(msgspec.Struct, frozen=True, tag="view", kw_only=True):
    """Show layers, the lowest first, as one tree of hard links in the empty directory `root`."""

    layers: tuple[str, ...]
    root: str
    complete: tuple[tuple[str, int], ...] = ()


class Verify(msgspec.Struct, frozen=True, tag="verify"):
    """Compare a layer with its record."""

    layer: str


class Remove(msgspec.Struct, frozen=True, tag="remove"):
    """Remove a tree, whoever its files belong to."""

    path: str


Job = Unpack | View | Verify | Remove


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """So many bytes more have come; or something worth a line."""

    read_bytes: int = 0
    text: str = ""


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The answer: of Verify what is wrong, of Unpack the layer's record."""

    text: str = ""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Why not. `kind` is the error's class."""

    kind: str
    text: str
    errno: int = 0


Answer = Progress | Done | Failed


class LayerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """layer.json."""

    digest: str
    """Of the tar: the layer's name."""
    size_bytes: int
    """Of all its files."""
    content: str
    """The digest of `entries`, which lists every name with all that it is."""
    owners: str
    """kept, or flattened to the one id there was."""
    links: tuple[tuple[str, str], ...] = ()
    """Hard links to files of lower layers, (name, target)."""
