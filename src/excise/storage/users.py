"""A user's numbers, by the image's own /etc/passwd and never by the host's."""

import os
from pathlib import Path

from excise.errors import SpecError


def numbers(user: str, root: Path) -> tuple[int, int]:
    """The uid and gid of `user` (a name or number, with an optional :group) in the image at `root`."""
    name, _, group = user.partition(":")
    entry = _entry("passwd", name, root)
    if entry is None and not name.isdigit():
        raise SpecError(f"the image has no user {name!r} in its /etc/passwd; name one it has, or a number")
    uid = int(name) if entry is None else int(entry[2])
    if not group:
        return uid, uid if entry is None else int(entry[3])
    listed = _entry("group", group, root)
    if listed is None and not group.isdigit():
        raise SpecError(f"the image has no group {group!r} in its /etc/group; name one it has, or a number")
    return uid, int(group) if listed is None else int(listed[2])


def _entry(file: str, key: str, root: Path) -> list[str] | None:
    """The line of etc/`file` whose name or number is `key`. No link is followed: it would lead to the host's file."""
    try:
        directory = os.open(root / "etc", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=directory)
        finally:
            os.close(directory)
    except OSError:
        return None
    with open(descriptor, encoding="utf-8", errors="replace") as lines:  # noqa: PTH123 - it is a descriptor
        for line in lines:
            fields = line.rstrip("\n").split(":")
            if (
                len(fields) > 3
                and key in (fields[0], fields[2])
                and fields[2].isdigit()
                and (file == "group" or fields[3].isdigit())
            ):
                return fields
    return None
