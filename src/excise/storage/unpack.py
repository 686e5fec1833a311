"""Unpack a root file system from a tar that may be hostile into a directory: one that is no layer among others."""

import lzma
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from excise.errors import SpecError
from excise.storage.background import Stop
from excise.storage.layers.tarfields import TarError
from excise.storage.layers.tarstream import Reader, members
from excise.storage.layers.tree import Tree
from excise.storage.layers.view import DISK_ERRORS
from excise.storage.oci.streams import FileSource, Limits, Stream

MOUNT_POINTS = (("dev", 0o755), ("proc", 0o755), ("sys", 0o755), ("tmp", 0o1777))
"""Where every substrate mounts something."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DAMAGED = (TarError, SpecError, EOFError, zlib.error, lzma.LZMAError, ValueError, OverflowError)


def unpack(tar: Path, root: Path, stop: Stop, *, named: str | None = None, workdir: str = "/") -> int:
    """Unpack `tar` into the empty directory `root` and return the bytes of its files. Errors call the tar `named`.

    As root, members keep their numeric owners; for an ordinary user they are all the user's own. Where every substrate
    mounts something, and at `workdir`, there is a directory afterwards even if the tar had none.
    """
    directory = os.open(root, _DIRECTORY)
    tree = Tree(directory, keep_owners=os.geteuid() == 0, alone=True)
    stream = Stream(_checked(FileSource(str(tar)), stop), Limits())
    current = ""
    try:
        reader = Reader(iter(stream))
        for member, content in members(reader, Limits().most_bytes):
            stop.check()
            current = f" at member {member.name[:200]!r}"
            tree.add(member, content)
        if not current:
            raise TarError("it holds no files")
        current = ""
        reader.drain()
        tree.finish()
        for name, mode in (*MOUNT_POINTS, (workdir, 0o755)):
            tree.complete(name.strip("/"), mode)
    except _DAMAGED as error:
        raise SpecError(f"{named or tar} cannot be unpacked{current}: {' '.join(str(error).split())}") from None
    except OSError as error:
        if error.errno in DISK_ERRORS:
            raise
        raise SpecError(f"{named or tar} cannot be unpacked{current}: {error.strerror or error}") from None
    finally:
        stream.close()
        tree.close()
        os.close(directory)
    return tree.size_bytes


def _checked(source: FileSource, stop: Stop) -> Iterator[bytes]:
    for chunk in source.chunks():
        stop.check()
        yield chunk
