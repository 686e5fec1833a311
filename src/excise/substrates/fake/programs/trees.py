"""Programs that change or show the file tree."""

from excise.substrates.fake.files import Directory, File, Link
from excise.substrates.fake.proc import Proc
from excise.substrates.fake.programs.voice import complain, encoded
from excise.substrates.fake.special import absolute, is_directory, node_at, open_path


def _split(argv: list[str]) -> tuple[str, list[str]]:
    """The letters of the options, and the other words."""
    words = argv[1:]
    ends = words.index("--") if "--" in words else len(words)
    options = [word for word in words[:ends] if word.startswith("-") and len(word) > 1]
    others = [word for word in words[:ends] if word not in options] + words[ends + 1 :]
    return "".join(option.lstrip("-") for option in options), others


async def touch(proc: Proc, argv: list[str]) -> int:
    for name in _split(argv)[1]:
        try:
            open_path(proc, name, write=True, append=True)
            proc.machine.tree.touch(node_at(proc, name))
        except OSError as error:
            return await complain(proc, "touch", f"cannot touch '{name}': {error.strerror}")
    return 0


async def mkdir(proc: Proc, argv: list[str]) -> int:
    options, names = _split(argv)
    for name in names:
        try:
            with proc.noting_full():
                proc.machine.tree.make_dir(absolute(proc, name), proc.who, 0o777 & ~proc.umask, parents="p" in options)
        except OSError as error:
            return await complain(proc, "mkdir", f"cannot create directory '{name}': {error.strerror}")
    return 0


async def rm(proc: Proc, argv: list[str]) -> int:
    options, names = _split(argv)
    status = 0
    for name in names:
        try:
            recursive = "r" in options or "R" in options
            proc.machine.tree.remove(absolute(proc, name), proc.who, recursive=recursive)
        except FileNotFoundError as error:
            if "f" not in options:
                status = await complain(proc, "rm", f"cannot remove '{name}': {error.strerror}")
        except OSError as error:
            status = await complain(proc, "rm", f"cannot remove '{name}': {error.strerror}")
    return status


async def mv(proc: Proc, argv: list[str]) -> int:
    *names, target = _split(argv)[1]
    for name in names:
        goal = f"{target}/{name.rpartition('/')[2]}" if is_directory(proc, target) else target
        try:
            proc.machine.tree.move(absolute(proc, name), absolute(proc, goal), proc.who)
        except OSError as error:
            return await complain(proc, "mv", f"cannot move '{name}': {error.strerror}")
    return 0


async def cp(proc: Proc, argv: list[str]) -> int:
    *names, target = _split(argv)[1]
    for name in names:
        goal = f"{target}/{name.rpartition('/')[2]}" if is_directory(proc, target) else target
        try:
            source, copy = open_path(proc, name), open_path(proc, goal, write=True, truncate=True)
            with proc.noting_full():
                while piece := await source.read(1 << 16):
                    await copy.write(piece)
            node_at(proc, goal).mode = node_at(proc, name).mode
        except OSError as error:
            return await complain(proc, "cp", f"cannot copy '{name}': {error.strerror}")
    return 0


async def ln(proc: Proc, argv: list[str]) -> int:
    options, names = _split(argv)
    if "s" not in options or len(names) != 2:
        return await complain(proc, "ln", "only `ln -s TARGET NAME` is here")
    try:
        with proc.noting_full():
            proc.machine.tree.link(absolute(proc, names[1]), names[0], proc.who)
    except OSError as error:
        return await complain(proc, "ln", f"failed to create symbolic link '{names[1]}': {error.strerror}")
    return 0


async def readlink(proc: Proc, argv: list[str]) -> int:
    for name in _split(argv)[1]:
        try:
            node = node_at(proc, name, follow=False)
        except OSError:
            return 1
        if not isinstance(node, Link):
            return 1
        await proc.write(1, encoded(node.target + "\n"))
    return 0


async def chmod(proc: Proc, argv: list[str]) -> int:
    mode, *names = argv[1:]
    for name in names:
        try:
            node = node_at(proc, name)
        except OSError as error:
            return await complain(proc, "chmod", f"cannot access '{name}': {error.strerror}")
        if proc.who.uid not in (0, node.uid):
            return await complain(proc, "chmod", f"changing permissions of '{name}': Operation not permitted")
        if mode.isdigit():
            node.mode = int(mode, 8)
        else:
            bits = sum({"r": 0o444, "w": 0o222, "x": 0o111}.get(letter, 0) for letter in mode)
            node.mode = node.mode & ~bits if "-" in mode else node.mode | bits
    return 0


async def ls(proc: Proc, argv: list[str]) -> int:
    options, names = _split(argv)
    for name in names or ["."]:
        try:
            node = node_at(proc, name)
        except OSError as error:
            await complain(proc, "ls", f"cannot access '{name}': {error.strerror}")
            return 2
        found = sorted(node.entries) if isinstance(node, Directory) and "d" not in options else [name]
        shown = [entry for entry in found if "a" in options or "A" in options or not entry.startswith(".")]
        await proc.write(1, encoded("".join(f"{entry}\n" for entry in shown)))
    return 0


async def du(proc: Proc, argv: list[str]) -> int:
    """`du -sb`: bytes in files."""
    name = (_split(argv)[1] or ["."])[0]
    await proc.write(1, encoded(f"{_size_bytes(node_at(proc, name))}\t{name}\n"))
    return 0


def _size_bytes(node: object) -> int:
    if isinstance(node, Directory):
        return sum(_size_bytes(entry) for entry in node.entries.values())
    return len(node.data) if isinstance(node, File) else 0
