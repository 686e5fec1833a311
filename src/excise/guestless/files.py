"""File actions as small shell scripts, byte for byte, whatever the names.

A script tells its failure by its exit code, 64 + errno, found by tests in the script itself: messages are for people, and
in the image's language.
"""

import errno
import os
import re
import stat
from collections.abc import Awaitable, Callable
from pathlib import PurePosixPath
from typing import Literal

import msgspec

from excise.action import KEEP_ALL, Exec, FileAction, FileInfo, List, MakeDir, Move, Observation, Read, Remove, Stat, Write
from excise.guestless.wrapper import SIGNALLED, plain
from excise.handles import failed_file

_ERRNO_BASE = 64
TIMEOUT_S = 600.0

# absent PATH: leave, saying why PATH is not there. refused PATH: why it cannot be changed; root is refused only by what is
# read-only. here PATH: something is there, if only a dangling link. parent PATH: prints nothing, sets $up.
PREAMBLE = rf"""
LC_ALL=C
TZ=UTC0
export LC_ALL TZ
umask 022
fail() {{ exit $(({_ERRNO_BASE} + $1)); }}
here() {{ [ -e "$1" ] || [ -L "$1" ]; }}
parent() {{ up=${{1%/*}}; [ -n "$up" ] || up=/; }}
absent() {{
    [ ${{#1}} -lt 4096 ] || fail {errno.ENAMETOOLONG}
    [ -L "$1" ] && fail {errno.ENOENT}
    parent "$1"
    while ! here "$up"; do parent "$up"; done
    [ -d "$up" ] || fail {errno.ENOTDIR}
    [ -x "$up" ] || fail {errno.EACCES}
    fail {errno.ENOENT}
}}
refused() {{
    [ "$(id -u)" = 0 ] && fail {errno.EROFS}
    fail {errno.EACCES}
}}
changeable() {{ parent "$1"; [ -w "$up" ] && [ -x "$up" ] || refused "$up"; }}
make_dirs() {{
    mkdir -p ${{2:+-m "$2"}} "$1" 2>/dev/null && return
    [ -d "$1" ] && return
    here "$1" && fail {errno.EEXIST}
    up=$1
    while ! here "$up"; do parent "$up"; done
    [ -d "$up" ] || fail {errno.ENOTDIR}
    [ -w "$up" ] && [ -x "$up" ] || refused "$up"
    fail {errno.ENOSPC}
}}
"""

_READ = rf"""
[ -d "$1" ] && fail {errno.EISDIR}
[ -e "$1" ] || absent "$1"
[ -r "$1" ] || fail {errno.EACCES}
if [ "$2" -gt 1 ]; then
    if [ -n "$3" ]; then tail -c +"$2" "$1" | head -c "$3"; else exec tail -c +"$2" "$1"; fi
elif [ -n "$3" ]; then
    exec head -c "$3" "$1"
else
    exec cat "$1"
fi
"""

_WRITE = rf"""
case $1 in */) fail {errno.EISDIR} ;; esac
[ -d "$1" ] && fail {errno.EISDIR}
parent "$1"
[ -d "$up" ] || {{ here "$up" && fail {errno.ENOTDIR}; (make_dirs "$up"); code=$?; }}
[ "${{code:-0}}" = {_ERRNO_BASE + errno.EEXIST} ] && fail {errno.ENOTDIR}
[ "${{code:-0}}" = 0 ] || exit "$code"
if [ -e "$1" ]; then [ -w "$1" ] || refused "$1"; else changeable "$1"; fi
if [ "$3" = append ]; then cat >>"$1"; else cat >"$1"; fi || fail {errno.ENOSPC}
[ -z "$2" ] || chmod "$2" "$1" || fail {errno.EPERM}
"""

# A record is "mode size seconds uid gid time/name/": no slash is in a name or a number, so a newline in a name is harmless.
_FORMAT = "'%f %s %Y %u %g %y/%n/'"
_LIST = rf"""
[ -d "$1" ] || {{ here "$1" && [ ! -L "$1" ] && fail {errno.ENOTDIR}; [ -e "$1" ] && fail {errno.ENOTDIR}; absent "$1"; }}
[ -r "$1" ] || fail {errno.EACCES}
cd "$1" 2>/dev/null || fail {errno.EACCES}
set --
for name in * .[!.]* ..?*; do
    here "./$name" || continue
    set -- "$@" "$name"
    [ $# -lt 200 ] && continue
    stat -c {_FORMAT} -- "$@" 2>/dev/null
    set --
done
[ $# -eq 0 ] || stat -c {_FORMAT} -- "$@" 2>/dev/null
for name in * .[!.]* ..?*; do
    [ -L "./$name" ] || continue
    target=$(readlink -n "./$name"; printf x)
    printf '\0%s\0%s' "$name" "${{target%x}}"
done
:
"""
_STAT = rf"""
here "$1" || absent "$1"
[ -L "$1" ] || [ -d "$1" ] || case $1 in */) fail {errno.ENOTDIR} ;; esac
stat -c '%f %s %Y %u %g %y/x/' "$1" 2>/dev/null || fail {errno.EACCES}
[ -L "$1" ] || exit 0
target=$(readlink -n "$1"; printf x)
printf '\0x\0%s' "${{target%x}}"
"""

_REMOVE = rf"""
here "$1" || absent "$1"
if [ -d "$1" ] && [ ! -L "$1" ]; then
    [ "$2" = recursive ] || fail {errno.EISDIR}
    rm -rf "$1" 2>/dev/null
else
    rm -f "$1" 2>/dev/null
fi
here "$1" || exit 0
changeable "$1"
fail {errno.EACCES}
"""

_MOVE = rf"""
here "$1" || absent "$1"
parent "$2"
[ -d "$up" ] || {{ here "$up" && fail {errno.ENOTDIR}; absent "$2"; }}
[ "$1" -ef "$2" ] && [ ! -L "$1" ] && [ ! -L "$2" ] && exit 0
if [ -d "$1" ] && [ ! -L "$1" ]; then
    case $2/ in "$1"/*) fail {errno.EINVAL} ;; esac
    if [ -d "$2" ] && [ ! -L "$2" ]; then rmdir "$2" 2>/dev/null || fail {errno.ENOTEMPTY}
    elif here "$2"; then fail {errno.ENOTDIR}; fi
elif [ -d "$2" ]; then
    [ -L "$2" ] || fail {errno.EISDIR}
    rm -f "$2" 2>/dev/null
fi
mv -f "$1" "$2" 2>/dev/null && exit 0
changeable "$1"
changeable "$2"
fail {errno.EIO}
"""

_MAKE_DIR = 'make_dirs "$1" "$2"\n'

Run = Callable[[Exec], Awaitable[Observation]]


async def run_file(run: Run, action: FileAction) -> Observation:
    """Carry out a file action by way of `run`; paths are relative to the sandbox's working directory."""
    paths = (action.path, action.target) if isinstance(action, Move) else (action.path,)
    if any("\0" in path for path in paths):
        return failed_file(errno.EINVAL)
    if not all(paths):
        return failed_file(errno.ENOENT)
    seen = await run(_command(action, tuple(plain(path) for path in paths)))
    if not seen.ok:
        return failed_file(error_of(seen.exit_code) or errno.EIO)
    if isinstance(action, Read):
        return Observation(stdout=seen.stdout)
    if isinstance(action, List):
        return Observation(files=tuple(sorted(_infos(seen.stdout), key=lambda info: info.name)))
    if isinstance(action, Stat):
        name = PurePosixPath(action.path).name or action.path
        return Observation(files=tuple(msgspec.structs.replace(info, name=name) for info in _infos(seen.stdout)))
    return Observation()


def _command(action: FileAction, paths: tuple[str, ...]) -> Exec:
    match action:
        case Read(offset=offset, length=length):
            return script(_READ, *paths, str(offset + 1), "" if length is None else str(length))
        case Write(data=data, mode=mode, append=append):
            arguments = ("" if mode is None else f"{mode:o}", "append" if append else "")
            return msgspec.structs.replace(script(_WRITE, *paths, *arguments), stdin=data)
        case List():
            return script(_LIST, *paths)
        case Stat():
            return script(_STAT, *paths)
        case Remove(recursive=recursive):
            return script(_REMOVE, *paths, "recursive" if recursive else "")
        case Move():
            return script(_MOVE, *paths)
        case MakeDir(mode=mode):
            return script(_MAKE_DIR, *paths, f"{mode:o}")


def script(text: str, *arguments: str) -> Exec:
    """`text` with the functions it calls, as a command whose output is kept whole."""
    return Exec(("sh", "-c", PREAMBLE + text, "sh", *arguments), timeout_s=TIMEOUT_S, keep=KEEP_ALL)


def error_of(exit_code: int | None) -> int | None:
    """The errno a script's exit code stands for, if it stands for one."""
    if exit_code is None or exit_code > SIGNALLED:
        return None  # a signal ended it
    code = exit_code - _ERRNO_BASE
    return code if code in errno.errorcode else None


_RECORD = re.compile(rb"\n?([0-9a-f]+) (\d+) (-?\d+) (\d+) (\d+) ([^/]*)/([^/]*)/", re.DOTALL)
_FRACTION = re.compile(rb"\.(\d{1,9})")


def _infos(output: bytes) -> list[FileInfo]:
    records, *links = output.split(b"\0")
    targets = dict(zip(links[::2], links[1::2], strict=True))
    return [_info(record, targets) for record in _RECORD.finditer(records)]


def _info(record: "re.Match[bytes]", targets: dict[bytes, bytes]) -> FileInfo:
    raw_mode, size, seconds, uid, gid, time, name = record.groups()
    fraction = _FRACTION.search(time)
    mode = int(raw_mode, 16)
    target = targets.get(name)
    return FileInfo(
        name=os.fsdecode(name),
        kind=_kind(mode),
        size_bytes=int(size),
        mode=stat.S_IMODE(mode),
        mtime_ns=int(seconds) * 10**9 + (int(fraction[1].ljust(9, b"0")) if fraction else 0),
        uid=int(uid),
        gid=int(gid),
        target=None if target is None else os.fsdecode(target),
    )


def _kind(mode: int) -> Literal["file", "directory", "link", "other"]:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "link" if stat.S_ISLNK(mode) else "other"
