"""Changes as a patch that `git apply` takes: text by lines, everything else as git's own binary literal."""

import difflib
import errno
import hashlib
import os
import posixpath
import re
import stat
import zlib
from base64 import b85encode
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from excise.action import Observation, Read, Stat
from excise.errors import SpecError
from excise.substrate import Change, Handle

_PLAIN_NAME = re.compile(r'[^\x00-\x1f"\\\x7f]*')
_BINARY_LINE_BYTES = 52
_NOTHING = "0" * 40
MOST_BYTES = 64 << 20
"""Of all files a patch is made of, as they are now."""


class Side(NamedTuple):
    """A file or a link before or after."""

    mode: int
    """`st_mode`."""
    data: bytes
    """A link's is its target."""

    @property
    def git_mode(self) -> str:
        """Git knows files, executable ones and links, and no other rights."""
        if stat.S_ISLNK(self.mode):
            return "120000"
        return "100755" if self.mode & stat.S_IXUSR else "100644"

    @property
    def digest(self) -> str:
        return hashlib.sha1(b"blob %d\0" % len(self.data) + self.data, usedforsecurity=False).hexdigest()


def below(under: str, changes: Sequence[Change]) -> tuple[Change, ...]:
    """The changes in the directory `under`, itself included."""
    if not under.startswith("/"):
        raise SpecError(f"diff(under={under!r}): name the directory from the root, as in /work")
    root = posixpath.normpath("/" + under.strip("/"))
    return tuple(one for one in changes if root in ("/", one.path) or one.path.startswith(f"{root}/"))


async def patch_of(handle: Handle, changes: Sequence[Change], under: str) -> str:
    """The patch from what `changes` say was there to what is there now. Git has no directories, so a patch has none."""
    made: list[str] = []
    left_bytes = MOST_BYTES
    for change in changes:
        now = None if change.kind == "deleted" else await _now(handle, change.path, left_bytes)
        left_bytes -= len(now.data) if now else 0
        before = None
        if change.before is not None and change.before_mode is not None:
            before = Side(change.before_mode, change.before)
        if before != now and (before or now):
            made.append(section(posixpath.relpath(change.path, under), before, now))
    return "".join(made)


async def _now(handle: Handle, path: str, most_bytes: int) -> Side | None:
    """What is there now; None if that is no file and no link. Nothing is read that is more than it may be."""
    seen = await handle.run(Stat(path))
    if seen.errno == errno.ENOENT:
        return None  # gone since
    _check(seen, path)
    (info,) = seen.files
    if info.kind == "link":
        return Side(stat.S_IFLNK | 0o777, (info.target or "").encode("utf-8", "surrogateescape"))
    if info.kind != "file":
        return None
    read = await handle.run(Read(path, length=most_bytes + 1)) if info.size_bytes <= most_bytes else None
    if read is None or len(read.stdout) > most_bytes:
        raise SpecError(f"the changes hold more than {MOST_BYTES:,} bytes: ask without their contents, or under= less")
    _check(read, path)
    return Side(stat.S_IFREG | (info.mode & 0o7777), read.stdout)


def _check(seen: Observation, path: str) -> None:
    """What the sandbox's own user may not read is no deletion."""
    if seen.errno is not None:
        raise OSError(seen.errno, os.strerror(seen.errno), path)


def section(name: str, before: Side | None, now: Side | None) -> str:
    """One file's part of a patch. Where the type changed, it goes and comes anew, as git wants it."""
    if before and now and stat.S_IFMT(before.mode) != stat.S_IFMT(now.mode):
        return section(name, before, None) + section(name, None, now)
    old, new = _quoted(f"a/{name}"), _quoted(f"b/{name}")
    lines = [f"diff --git {old} {new}"]
    if before is None and now is not None:
        lines.append(f"new file mode {now.git_mode}")
    elif now is None and before is not None:
        lines.append(f"deleted file mode {before.git_mode}")
    elif before and now and before.git_mode != now.git_mode:
        lines += [f"old mode {before.git_mode}", f"new mode {now.git_mode}"]
    was, is_now = before.data if before else b"", now.data if now else b""
    if was != is_now or before is None or now is None:
        lines.append(f"index {before.digest if before else _NOTHING}..{now.digest if now else _NOTHING}")
    if was != is_now:
        lines += (
            _binary(was, is_now)
            if _is_binary(was) or _is_binary(is_now)
            else _text(was, is_now, old if before else "/dev/null", new if now else "/dev/null")
        )
    return "\n".join(lines) + "\n" if len(lines) > 1 else ""


def _text(was: bytes, is_now: bytes, old: str, new: str) -> Iterator[str]:
    yield f"--- {old}"
    yield f"+++ {new}"
    a, b = _lines(was), _lines(is_now)
    for line in list(difflib.unified_diff(a, b, lineterm="\n"))[2:]:
        # Only a last line has no end; git wants it said.
        yield line.removesuffix("\n") if line.endswith("\n") else f"{line}\n\\ No newline at end of file"


def _lines(data: bytes) -> list[str]:
    """With their ends. `splitlines` would also split at characters that end no line."""
    return re.findall(r"[^\n]*\n|[^\n]+", data.decode())


def _is_binary(data: bytes) -> bool:
    try:
        return "\0" in data.decode()
    except UnicodeDecodeError:
        return True


def _binary(was: bytes, is_now: bytes) -> Iterator[str]:
    yield "GIT binary patch"
    yield from _literal(is_now)
    yield from _literal(was)


def _literal(data: bytes) -> Iterator[str]:
    yield f"literal {len(data)}"
    packed = zlib.compress(data)
    for at in range(0, len(packed), _BINARY_LINE_BYTES):
        piece = packed[at : at + _BINARY_LINE_BYTES]
        length = chr(ord("A") + len(piece) - 1) if len(piece) <= 26 else chr(ord("a") + len(piece) - 27)
        yield length + b85encode(piece, pad=True).decode()
    yield ""


def _quoted(name: str) -> str:
    """As git writes a name that has more in it than letters: in C's way."""
    if _PLAIN_NAME.fullmatch(name) and name.isascii():
        return name
    made = ""
    for byte in name.encode("utf-8", "surrogateescape"):
        character = chr(byte)
        plain = 0x20 <= byte < 0x7F and character not in '"\\'
        made += character if plain else f"\\{character}" if character in '"\\' else f"\\{byte:03o}"
    return f'"{made}"'
