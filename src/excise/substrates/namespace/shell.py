"""The bash of a session, taken out of its image: a copy that may be executed and not read.

The kernel then lets no process of the sandbox look into one that runs, nor write into it.
"""

import contextlib
import errno
import os
import stat

from excise.errors import CreateError
from excise.storage.image import Image

_MODE = 0o111
_MOST_LINKS = 40
_MOST_BYTES = 64 << 20
_USUAL_PATH = "/usr/local/bin:/usr/bin:/bin"
_MFD_EXEC = 0x10
"""Since Linux 6.3, where a memory file may else not be executed by a setting of the machine."""


class Shells:
    """The shells of the images a substrate has used, each copied once; they are open while it is."""

    def __init__(self) -> None:
        self._open: dict[str, int | None] = {}

    def of(self, image: Image) -> int | None:
        """Its descriptor, ours to close; None if the image has no bash."""
        key = str(image.root)
        if key not in self._open:
            self._open[key] = opaque(image)
        return self._open[key]

    def close(self) -> None:
        for descriptor in self._open.values():
            if descriptor is not None:
                os.close(descriptor)
        self._open.clear()


def opaque(image: Image) -> int | None:
    """A descriptor of the image's bash, to be executed only. The caller closes it."""
    for directory in image.env.get("PATH", _USUAL_PATH).split(":"):
        if not directory.startswith("/"):
            continue
        with contextlib.suppress(OSError):
            found = _open_inside(image, f"{directory}/bash")
            try:
                return _copied(found)
            finally:
                os.close(found)
    return None


def _copied(found: int) -> int:
    """A memory file with what `found` holds. Its owner is us: as root, nobody inside, not even its root, may then read it."""
    told = os.fstat(found)
    if not stat.S_ISREG(told.st_mode) or not told.st_mode & _MODE or told.st_size > _MOST_BYTES:
        raise OSError(errno.ENOEXEC, "not a program")
    source = os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        copy = _memory_file()
        try:
            while os.sendfile(copy, source, None, _MOST_BYTES):
                pass
            os.fchmod(copy, _MODE)
            # What is open for writing cannot be executed: opened anew, and the writer closed.
            return os.open(f"/proc/self/fd/{copy}", os.O_PATH | os.O_CLOEXEC)
        finally:
            os.close(copy)
    finally:
        os.close(source)


def _memory_file() -> int:
    try:
        return os.memfd_create("bash", os.MFD_CLOEXEC | _MFD_EXEC)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise CreateError(f"no copy of the image's bash could be made: {error.strerror}") from None
        return os.memfd_create("bash", os.MFD_CLOEXEC)


def _open_inside(image: Image, path: str) -> int:
    """`path` as the sandbox will see it, with O_PATH. Links are followed inside the image and never out of it."""
    todo = _names(path)
    links = 0
    with _Walk(image) as walk:
        while todo:
            name = todo.pop(0)
            target = walk.step(name)
            if target is None:
                continue
            if (links := links + 1) > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            if target.startswith("/"):
                walk.to_root()
            todo = _names(target) + todo
        return walk.take()


class _Walk:
    """A place inside an image, and the descriptors of the directories that lead to it."""

    def __init__(self, image: Image) -> None:
        self._binds = {target.rstrip("/"): source for source, target in image.binds}
        self._names: list[str] = []
        self._held = [os.open(image.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]

    def __enter__(self) -> "_Walk":
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._held:
            os.close(descriptor)

    def step(self, name: str) -> str | None:
        """Go to `name` from here; where it points to, if it is a link, which is not followed."""
        if name == "..":
            self._up()
            return None
        entry = self._open(name)
        if stat.S_ISLNK(os.fstat(entry).st_mode):
            try:
                return os.readlink("", dir_fd=entry)
            finally:
                os.close(entry)
        self._names.append(name)
        self._held.append(entry)
        return None

    def _open(self, name: str) -> int:
        bound = self._binds.get("/" + "/".join((*self._names, name)))
        if bound is not None:
            return os.open(bound, os.O_PATH | os.O_CLOEXEC)
        return os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._held[-1])

    def _up(self) -> None:
        if self._names:
            self._names.pop()
            os.close(self._held.pop())

    def to_root(self) -> None:
        while self._names:
            self._up()

    def take(self) -> int:
        """The descriptor of where we are; the caller's from now on."""
        return self._held.pop()


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]
