"""File actions and tar streams on a pretend machine's tree."""

import errno
import io
import posixpath
import tarfile
from collections.abc import AsyncIterable, AsyncIterator
from typing import Literal

from excise.action import FileAction, FileInfo, List, MakeDir, Move, Observation, Read, Remove, Stat, Write
from excise.substrates.fake.files import READ, Directory, File, Link, Node, Tree, Who, refusal

PIECE_BYTES = 1 << 16


class FileWork:
    """One user's view of a tree; relative names are taken from `workdir`."""

    def __init__(self, tree: Tree, who: Who, workdir: str, broken: frozenset[str] = frozenset()) -> None:
        self._tree = tree
        self._who = who
        self._workdir = workdir
        self._broken = broken

    def absolute(self, path: str) -> str:
        return posixpath.join(self._workdir, path)

    def has(self, path: str) -> bool:
        return self._tree.exists(self.absolute(path), self._who)

    def do(self, action: FileAction) -> Observation:
        """Do it, or raise the OSError that says why not."""
        path = self.absolute(action.path)
        match action:
            case Read():
                return Observation(stdout=self._read(path, action))
            case Write():
                self._write(path, action)
            case List():
                entries = self._tree.directory(path, self._who)
                self._who.check(entries, READ)
                names = entries.entries if "list-and-stat" in self._broken else sorted(entries.entries)
                return Observation(files=tuple(_info(name, entries.entries[name]) for name in names))
            case Stat():
                follow = "list-and-stat" in self._broken
                return Observation(files=(_info(posixpath.basename(path), self._tree.get(path, self._who, follow=follow)),))
            case Remove(recursive=recursive):
                self._tree.remove(path, self._who, recursive=recursive)
            case Move(target=target):
                if "remove-move-make-dir" in self._broken and self.has(target):
                    raise refusal(errno.EEXIST, path)
                self._tree.move(path, self.absolute(target), self._who)
            case MakeDir(mode=mode):
                self._tree.make_dir(path, self._who, mode, parents=True)
        return Observation()

    def _read(self, path: str, action: Read) -> bytes:
        node = self._tree.open(path, self._who, write=False)
        data = bytes(node.data) if isinstance(node, File) else b""
        if "read-range" in self._broken:
            return data
        if "file-round-trip" in self._broken:
            return data.decode("utf-8", "replace").encode()
        end = None if action.length is None else action.offset + action.length
        return data[action.offset : end]

    def _write(self, path: str, action: Write) -> None:
        above = posixpath.dirname(path)
        if not self._tree.exists(above, self._who):
            self._tree.make_dir(above, self._who, parents=True)
        append = action.append and "write-append-and-mode" not in self._broken
        file = self._tree.open(path, self._who, write=True, truncate=not append, mode=0o644)
        if not isinstance(file, File):
            return
        data = action.data
        while data:
            data = data[self._tree.put(file, data, len(file.data)) :]
        if action.mode is not None:
            file.mode = action.mode

    # ---- tar

    async def upload(self, path: str, tar: AsyncIterable[bytes]) -> None:
        """Unpack into the directory `path`, which is made if it is missing."""
        pieces = [piece async for piece in tar]
        target = self.absolute(path)
        self._tree.make_dir(target, self._who, parents=True)
        with tarfile.open(fileobj=io.BytesIO(b"".join(pieces)), mode="r:*") as archive:
            for member in archive:
                self._unpack(target, member, archive)

    def _unpack(self, target: str, member: tarfile.TarInfo, archive: tarfile.TarFile) -> None:
        place = posixpath.normpath(posixpath.join(target, member.name))
        if place != target and not place.startswith(target.rstrip("/") + "/"):
            raise refusal(errno.EPERM, member.name)  # a name that climbs out of the directory
        if member.isdir():
            self._tree.make_dir(place, self._who, parents=True)
        else:
            self._tree.make_dir(posixpath.dirname(place), self._who, parents=True)
            if self._tree.find(place, self._who, follow=False).node is not None:
                self._tree.remove(place, self._who)
        if member.issym():
            self._tree.link(place, member.linkname, self._who)
            return
        if member.isfile():
            content = archive.extractfile(member)
            assert content is not None
            self._write(place, Write(place, content.read()))
        node = self._tree.get(place, self._who)
        if "tar-round-trip" not in self._broken:
            node.mode = member.mode
        node.mtime_ns = round(member.mtime * 1e9)

    async def download(self, path: str) -> AsyncIterator[bytes]:
        """`path` as a tar stream, its names relative to its parent."""
        place = posixpath.normpath(self.absolute(path))
        node = self._tree.get(place, self._who, follow=False)
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
            self._pack(archive, posixpath.basename(place) or ".", node)
        data = packed.getvalue()
        for start in range(0, len(data), PIECE_BYTES):
            yield data[start : start + PIECE_BYTES]

    def _pack(self, archive: tarfile.TarFile, name: str, node: Node) -> None:
        member = tarfile.TarInfo(name)
        member.mode, member.uid, member.gid = node.mode, node.uid, node.gid
        member.mtime = node.mtime_ns // 1_000_000_000
        match node:
            case Directory():
                member.type = tarfile.DIRTYPE
                archive.addfile(member)
                for entry in sorted(node.entries):
                    self._pack(archive, f"{name}/{entry}", node.entries[entry])
            case Link():
                member.type, member.linkname = tarfile.SYMTYPE, node.target
                archive.addfile(member)
            case File():
                self._who.check(node, READ)
                member.size = len(node.data)
                archive.addfile(member, io.BytesIO(bytes(node.data)))
            case _:
                pass  # devices are the machine's own


def _info(name: str, node: Node) -> FileInfo:
    kind: Literal["file", "directory", "link", "other"]
    match node:
        case File(data=data):
            kind, size_bytes = "file", len(data)
        case Directory():
            kind, size_bytes = "directory", 0
        case Link(target=target):
            kind, size_bytes = "link", len(target)
        case _:
            kind, size_bytes = "other", 0
    return FileInfo(
        name=name,
        kind=kind,
        size_bytes=size_bytes,
        mode=node.mode,
        mtime_ns=node.mtime_ns,
        uid=node.uid,
        gid=node.gid,
        target=node.target if isinstance(node, Link) else None,
    )
