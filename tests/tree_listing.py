"""A tree as lines, for comparing two of them: run as a program, wherever the tree is whole."""

import hashlib
import json
import os
import stat
import sys


def listing(root: str) -> dict[str, list[object]]:
    """Every name below `root` with all that it is, and what it is a hard link to."""
    found: dict[str, list[object]] = {}
    first: dict[int, str] = {}
    for place, directories, files in os.walk(root):
        directories.sort()
        for name in sorted([*directories, *files]):
            path = os.path.join(place, name)  # noqa: PTH118 - it may be no text
            status = os.lstat(path)
            content = ""
            if stat.S_ISREG(status.st_mode):
                with open(path, "rb") as file:  # noqa: PTH123 - as above
                    content = hashlib.sha256(file.read()).hexdigest()
            elif stat.S_ISLNK(status.st_mode):
                content = os.readlink(path)  # noqa: PTH115 - as above
            attributes = [] if stat.S_ISLNK(status.st_mode) else os.listxattr(path)
            xattrs = sorted((name, os.getxattr(path, name).hex()) for name in attributes)
            inside = os.path.relpath(path, root)
            same = inside if stat.S_ISDIR(status.st_mode) else first.setdefault(status.st_ino, inside)
            mtime = int(status.st_mtime) if stat.S_ISREG(status.st_mode) else 0
            found[inside] = [oct(status.st_mode), status.st_uid, status.st_gid, content, xattrs, mtime, same]
    return found


if __name__ == "__main__":
    json.dump(listing(sys.argv[1]), sys.stdout)
