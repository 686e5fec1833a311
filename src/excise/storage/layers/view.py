"""Layers shown as one tree: of hard links into them, so that it costs names and no content. And the end of such trees."""

import ctypes
import errno
import os
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path

import msgspec

from excise.errors import SpecError
from excise.storage.layers.jobs import LayerRecord, View
from excise.storage.layers.tree import OPAQUE
from excise.storage.trees.copy import copy_entry

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EMLINK)
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def build(job: View) -> None:
    """Merge the layers, the lowest first, into the empty directory `root`: what lies higher hides what lies lower."""
    root = os.open(job.root, _DIRECTORY)
    os.fchmod(root, 0o755)
    try:
        for place in job.layers:
            layer = os.open(Path(place, "tree"), _DIRECTORY)
            try:
                _add(layer, root)
            finally:
                os.close(layer)
            _add_links(Path(place), root)
        for name, mode in job.complete:
            _complete(root, name, mode)
    finally:
        os.close(root)
    sync(Path(job.root))


def _add(layer: int, into: int) -> None:
    """Everything of the directory `layer`, and its own mode and owner, over what `into` holds."""
    if OPAQUE in os.listxattr(layer):
        for name in os.listdir(into):
            _clear(name, into)
    for name in os.listdir(layer):
        status = os.stat(name, dir_fd=layer, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            _add_directory(name, layer, into)
            continue
        _clear(name, into)
        if not (stat.S_ISCHR(status.st_mode) and status.st_rdev == 0):
            _link_or_copy(name, layer, into)
    _dress(layer, into)


def _link_or_copy(name: str, layer: int, into: int) -> None:
    """A file has so many names, on ext4 65,000: a layer that more views show is copied from then on."""
    try:
        os.link(name, name, src_dir_fd=layer, dst_dir_fd=into, follow_symlinks=False)
    except OSError as error:
        if error.errno != errno.EMLINK:
            raise
        copy_entry(os.fsencode(name), layer, into)


def _add_directory(name: str, layer: int, into: int) -> None:
    try:
        os.mkdir(name, 0o700, dir_fd=into)
    except FileExistsError:
        if not stat.S_ISDIR(os.stat(name, dir_fd=into, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=into)
            os.mkdir(name, 0o700, dir_fd=into)
    source, target = os.open(name, _DIRECTORY, dir_fd=layer), os.open(name, _DIRECTORY, dir_fd=into)
    try:
        _add(source, target)
    finally:
        os.close(source)
        os.close(target)


def _dress(source: int, target: int) -> None:
    status = os.stat(source)
    os.fchown(target, status.st_uid, status.st_gid)
    os.fchmod(target, stat.S_IMODE(status.st_mode))
    for name in os.listxattr(source):
        if name != OPAQUE and name.startswith(("user.", "system.posix_acl_")):
            os.setxattr(target, name, os.getxattr(source, name))
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def _clear(name: str, at: int) -> None:
    try:
        os.unlink(name, dir_fd=at)
    except FileNotFoundError:
        pass
    except IsADirectoryError:
        shutil.rmtree(name, dir_fd=at)


def _add_links(place: Path, root: int) -> None:
    """Hard links whose targets are in lower layers: here, where both are, they are links to the same file."""
    record = msgspec.json.decode((place / "layer.json").read_bytes(), type=LayerRecord)
    for name, target in record.links:
        try:
            _link(name, target, root)
        except OSError as error:
            raise SpecError(
                f"layer {record.digest[:19]} has a hard link {name[:200]!r} to {target[:200]!r}, which no lower layer has "
                f"({error.strerror}): the image is damaged"
            ) from None


def _link(name: str, target: str, root: int) -> None:
    *to, last = target.split("/")
    *at, new = name.split("/")
    source = _walk(root, to)
    try:
        directory = _walk(root, at)
        try:
            if not stat.S_ISREG(os.stat(last, dir_fd=source, follow_symlinks=False).st_mode):
                raise FileNotFoundError(errno.ENOENT, "it is no file")
            _clear(new, directory)
            os.link(last, new, src_dir_fd=source, dst_dir_fd=directory, follow_symlinks=False)
        finally:
            os.close(directory)
    finally:
        os.close(source)


def _walk(root: int, names: Iterable[str]) -> int:
    at = os.dup(root)
    for name in names:
        try:
            below = os.open(name, _DIRECTORY, dir_fd=at)
        finally:
            os.close(at)
        at = below
    return at


def _complete(root: int, name: str, mode: int) -> None:
    """Make the directory `name` if nothing is there; where a link leads elsewhere it stays what it is."""
    at = os.dup(root)
    try:
        for part in name.strip("/").split("/"):
            if part in ("", ".", ".."):
                return
            try:
                os.mkdir(part, 0o755, dir_fd=at)
                os.chmod(part, mode, dir_fd=at)
            except FileExistsError:
                pass
            try:
                below = os.open(part, _DIRECTORY, dir_fd=at)
            except OSError:
                return
            os.close(at)
            at = below
    finally:
        os.close(at)


def remove(path: Path) -> None:
    """Remove a tree of ours with whatever modes its directories have: root, of whatever namespace, may enter them all."""
    if os.geteuid() != 0:
        path.chmod(0o700)
        for place, directories, _ in os.walk(path):
            for name in directories:
                if not Path(place, name).is_symlink():
                    Path(place, name).chmod(0o700)
    shutil.rmtree(path)


def sync(place: Path) -> None:
    """Bring all that was written to the file system of `place` to its disk."""
    descriptor = os.open(place, _DIRECTORY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(place))
    finally:
        os.close(descriptor)
