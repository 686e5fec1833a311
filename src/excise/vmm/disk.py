"""Disks: an image's root, read-only and shared by all machines of it; and a private one for what a machine writes."""

import asyncio
import errno
import os
from pathlib import Path

from excise.errors import SpecError, SubstrateError
from excise.storage.store import Image
from excise.vmm.kept import kept, remove, sentence
from excise.vmm.tools import find, run

# Not packed: an emulated processor would pay for it at every read, and the host's disk is large.
_PLAIN = ("-noI", "-noD", "-noF", "-noX", "-no-progress", "-quiet", "-no-recovery")


_NOT_BY_THE_KERNEL = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
_PIECE_BYTES = 1 << 20


async def root_disk(image: Image) -> Path:
    """`image` as a squashfs, owners kept; made once."""
    if image.binds:
        raise SpecError(
            f"a machine of its own cannot show this machine's directories, as image={image.name!r} does: name another"
        )
    if image.over:
        raise SpecError("saved layers over an image are not built into a disk yet; leave them out")

    async def fill(making: Path) -> None:
        squash = find("mksquashfs", "squashfs-tools")
        if os.geteuid() == 0 or image.tar is None:
            await run(squash, str(image.root), str(making), *_PLAIN)
        else:
            # The unpacked files are all ours, since an ordinary user has one uid to give: the tar knows their owners.
            await run(squash, "-", str(making), "-tar", *_PLAIN, stdin=image.tar)

    return await kept(f"disk-{image.key or image.digest.removeprefix('sha256:')}", fill)


async def private_disk(path: Path, size_bytes: int, inodes: int | None = None) -> None:
    """A sparse ext4 at `path`, empty. What is made once is its pattern: copying holes costs nothing."""
    if size_bytes < 16 << 20:
        raise SpecError(f"limits.disk_bytes={size_bytes} is too little for a disk: at least {16 << 20}")
    size_bytes = -(-size_bytes // 4096) * 4096

    async def fill(making: Path) -> None:
        with making.open("wb") as file:
            file.truncate(size_bytes)
        count = ("-N", str(inodes)) if inodes is not None else ()
        features = ("-O", "^has_journal", "-E", "lazy_itable_init=1,nodiscard,root_owner=0:0", "-m", "0")
        # Blocks as large as a page: of smaller ones a few are left that no write of a page can use, and it does not look full.
        await run(find("mkfs.ext4", "e2fsprogs"), "-q", "-F", "-b", "4096", *features, *count, str(making))

    pattern = await kept(f"ext4-4k-{size_bytes}-{inodes or 0}", fill)
    try:
        await asyncio.to_thread(_copy, pattern, path)
    except OSError as error:
        remove(path)
        raise sentence(error, path.parent) from None


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as read, target.open("wb") as write:
        copy_sparse(read.fileno(), write.fileno())


def copy_sparse(source: int, target: int) -> None:
    """Copy one open file to another, empty one, which then has holes where the first has them."""
    size = os.fstat(source).st_size
    os.ftruncate(target, size)
    at = 0
    while at < size:
        try:
            at = os.lseek(source, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return  # nothing but a hole is left
        end = os.lseek(source, at, os.SEEK_HOLE)
        while at < end:
            copied = _copied(source, target, at, end - at)
            if not copied:
                raise SubstrateError("a file became shorter while it was copied")
            at += copied


def _copied(source: int, target: int, at: int, most_bytes: int) -> int:
    """How many bytes were copied. Files of two file systems (a cache on disk, live sandboxes in memory) go through us."""
    try:
        return os.copy_file_range(source, target, most_bytes, at, at)
    except OSError as error:
        if error.errno not in _NOT_BY_THE_KERNEL:
            raise
        return os.pwrite(target, os.pread(source, min(most_bytes, _PIECE_BYTES), at), at)
