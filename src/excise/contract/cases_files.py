"""Files: byte for byte, by any name, and with the exceptions Python programmers know."""

import io
import os
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable

from excise.action import Read, Write
from excise.contract import scripts
from excise.contract.bench import Bench
from excise.contract.case import broken, case, equal, expect, succeeded
from excise.contract.watch import exists, workdir
from excise.sandbox import Sandbox

MEBIBYTE = 1 << 20
NAMES = ("plain", "two words", "new\nline", "-dash", "grüße ☃", "it's", 'a"b', "$HOME", "*", "back\\slash", ".hidden")
EVERY_BYTE = bytes(range(256))


@case(
    promise="A file comes back byte for byte, whatever is in it and whatever it is called.",
    why="Passing contents or names through a shell mangles quotes, newlines, zero bytes and leading dashes.",
)
async def file_round_trip(bench: Bench) -> None:
    box = await bench.sandbox()
    for data in (b"", b"\n", EVERY_BYTE, b"no newline at the end", os.urandom(MEBIBYTE)):
        await box.write("file", data)
        got = await box.read("file")
        expect(got == data, f"of {len(data)} bytes written, {len(got)} came back, or others")
        seen = await box.run(scripts.CAT_FILE)
        expect(seen.stdout == data, "a command reads something else than what was written")
    for name in NAMES:
        await box.write(f"names/{name}", name)
        equal((await box.read(f"names/{name}")).decode(), name, f"the content of a file called {name!r}")
    equal([f.name for f in await box.list("names")], sorted(NAMES), "the listed names")
    await box.write("-leading", b"dash")
    equal(await box.read("-leading"), b"dash", "the content of a file whose path begins with a dash")


async def _raises(what: str, verb: Callable[[], Awaitable[object]], error_type: type[OSError], path: str) -> None:
    try:
        await verb()
    except OSError as error:
        expect(type(error) is error_type, f"{what} raised {type(error).__name__}, not {error_type.__name__}")
        equal(error.filename, path, f"the file name in the error of {what}")
    else:
        broken(f"{what} did not raise {error_type.__name__}")


@case(
    promise="A file action that fails raises the built-in exception that says why.",
    why="A missing file that comes back as empty bytes, or as a bare RuntimeError, cannot be handled by the caller.",
)
async def file_errors(bench: Bench) -> None:
    box = await bench.sandbox()
    await box.write("file", b"x")
    await box.write("full/file", b"x")
    gone, folder, below = FileNotFoundError, IsADirectoryError, NotADirectoryError
    await _raises("reading what is not there", lambda: box.read("gone"), gone, "gone")
    await _raises("reading a directory", lambda: box.read("full"), folder, "full")
    await _raises("reading below a file", lambda: box.read("file/x"), below, "file/x")
    await _raises("writing to a directory", lambda: box.write("full", b"x"), folder, "full")
    await _raises("writing below a file", lambda: box.write("file/x", b"x"), below, "file/x")
    await _raises("listing what is not there", lambda: box.list("gone"), gone, "gone")
    await _raises("listing a file", lambda: box.list("file"), below, "file")
    await _raises("stat of what is not there", lambda: box.stat("gone"), gone, "gone")
    await _raises("removing what is not there", lambda: box.remove("gone"), gone, "gone")
    await _raises("removing a directory without recursive", lambda: box.remove("full"), folder, "full")
    await _raises("moving what is not there", lambda: box.move("gone", "new"), gone, "gone")
    await _raises("making a directory over a file", lambda: box.make_dir("file"), FileExistsError, "file")
    await _denied(box)
    equal((await box.read("file"), await box.read("full/file")), (b"x", b"x"), "the files after all that")


async def _denied(box: Sandbox) -> None:
    """Root may read everything, so only another user can be refused."""
    if (await box.run(scripts.PRINT_USER)).stdout.strip() != b"0":
        await box.write("locked", b"x", mode=0o000)
        await _raises("reading a file without permission", lambda: box.read("locked"), PermissionError, "locked")


@case(
    promise="Read takes an offset and a length, and what lies beyond the end is empty.",
    why="An agent pages through a log of gigabytes; reading it whole to return ten lines does not do.",
)
async def read_range(bench: Bench) -> None:
    box = await bench.sandbox()
    await box.write("file", EVERY_BYTE)
    for offset, length in ((0, None), (10, 5), (250, None), (250, 100), (256, 1), (1000, 1), (0, 0), (0, 256)):
        got = (await box.run(Read("file", offset, length))).stdout
        end = None if length is None else offset + length
        equal(got, EVERY_BYTE[offset:end], f"Read with offset {offset} and length {length}")


@case(
    promise="Write replaces a file, or with append adds to it; makes missing directories; sets the mode, or leaves it.",
    why="A script rewritten without its executable bit, or a shorter file with the old one's end, is a puzzle.",
)
async def write_append_and_mode(bench: Bench) -> None:
    box = await bench.sandbox()
    await box.write("a/b/file", b"first, and long")
    await box.write("a/b/file", b"second")
    await box.run(Write("a/b/file", b", more", append=True))
    equal(await box.read("a/b/file"), b"second, more", "what was written, replaced and appended to")
    await box.run(Write("new", b"appended", append=True))
    equal(await box.read("new"), b"appended", "what was appended to a file that was not there")
    for mode in (0o755, 0o640, 0o666):
        await box.write("tool", b"exit 0\n", mode=mode)
        equal((await box.stat("tool")).mode & 0o7777, mode, "the mode that was asked for")
    await box.write("tool", b"exit 0\n", mode=0o755)
    await box.write("tool", b"exit 1\n")
    succeeded(await box.run(scripts.IS_EXECUTABLE), "`test -x` of a file that was rewritten")


@case(
    promise="list shows every entry, sorted by name; stat shows a link itself, not what it points to.",
    why="Parsing `ls` gets sizes, kinds and odd names wrong; following links leads out of the tree.",
)
async def list_and_stat(bench: Bench) -> None:
    box = await bench.sandbox()
    await box.write("d/file", b"12345", mode=0o640)
    await box.make_dir("d/folder")
    await box.write("d/.hidden", b"")
    succeeded(await box.run(scripts.MAKE_LINK, cwd="d"), "`ln -s`")
    found = await box.list("d")
    wanted = [(".hidden", "file", None), ("file", "file", None), ("folder", "directory", None), ("link", "link", "file")]
    equal([(f.name, f.kind, f.target) for f in found], wanted, "what list shows")
    equal((found[1].size_bytes, found[1].mode & 0o7777), (5, 0o640), "size and mode of a listed file")
    expect(found[1].mtime_ns > 0, "a listed file has no time")
    link = await box.stat("d/link")
    equal((link.name, link.kind, link.target), ("link", "link", "file"), "what stat shows of a link")
    equal((await box.stat("d")).kind, "directory", "what stat shows of a directory")
    equal(await box.list("d/folder"), (), "what list shows of an empty directory")


@case(
    promise="Removing, moving and making directories do what they say, and nothing beside it.",
    why="A move that does not replace, or a remove that follows a link, destroys the wrong thing.",
)
async def remove_move_make_dir(bench: Bench) -> None:
    box = await bench.sandbox()
    await box.make_dir("one/two")
    await box.make_dir("one/two")  # there already: fine
    await box.write("one/two/file", b"moved")
    await box.write("target", b"replaced")
    await box.move("one/two/file", "target")
    equal(await box.read("target"), b"moved", "the content of the file that was moved to")
    expect(not await exists(box, "one/two/file"), "the moved file is still where it was")
    await box.move("one", "other")
    equal([f.name for f in await box.list("other")], ["two"], "what is in the moved directory")
    await box.write("file", b"kept")
    succeeded(await box.run(scripts.MAKE_LINK), "`ln -s`")
    await box.remove("link")
    equal(await box.read("file"), b"kept", "the file a removed link pointed to")
    await box.remove("other", recursive=True)
    expect(not await exists(box, "other"), "a directory removed with what was in it is still there")


def _tree() -> dict[str, tarfile.TarInfo]:
    """Members of a tar, by name; a file's bytes are in `_bytes_of`."""
    members: dict[str, tarfile.TarInfo] = {}
    for name, mode in (("bin/tool", 0o755), ("private", 0o600), ("two words ☃", 0o644), ("long/" + "x" * 120, 0o644)):
        members[name] = tarfile.TarInfo(name)
        members[name].mode, members[name].size = mode, len(_bytes_of(name))
    for name in ("bin", "empty", "long"):
        members[name] = tarfile.TarInfo(name)
        members[name].type, members[name].mode = tarfile.DIRTYPE, 0o750
    members["link"] = tarfile.TarInfo("link")
    members["link"].type, members["link"].linkname = tarfile.SYMTYPE, "bin/tool"
    return dict(sorted(members.items()))


def _bytes_of(name: str) -> bytes:
    return EVERY_BYTE * 300 + name.encode()


async def _packed(members: dict[str, tarfile.TarInfo]) -> AsyncIterator[bytes]:
    """A tar stream, in pieces of an odd size."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, member in members.items():
            tar.addfile(member, io.BytesIO(_bytes_of(name)) if member.isreg() else None)
    whole = buffer.getvalue()
    for at in range(0, len(whole), 7001):
        yield whole[at : at + 7001]


async def _downloaded(box: Sandbox, path: str) -> dict[str, tuple[str, int, bytes]]:
    """Type, mode (a link's means nothing) and content of all that a download holds, by name."""
    whole = b"".join([piece async for piece in box.download(path)])
    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        return {m.name.removeprefix("./").rstrip("/"): _facts(tar, m) for m in tar.getmembers()}


def _facts(tar: tarfile.TarFile, member: tarfile.TarInfo) -> tuple[str, int, bytes]:
    if member.issym():
        return "link", 0, member.linkname.encode()
    if member.isdir():
        return "directory", member.mode & 0o7777, b""
    opened = tar.extractfile(member)
    return "file", member.mode & 0o7777, opened.read() if opened is not None else b"no regular file"


@case(
    promise="A tree goes in and comes out as a tar stream unchanged: bytes, modes, links, empty directories.",
    why="Copying file by file loses links and modes, and a repository without its executable bits has no tests.",
)
async def tar_round_trip(bench: Bench) -> None:
    box = await bench.sandbox()
    await box.make_dir("tree")
    members = _tree()
    await box.upload("tree", _packed(members))
    wanted = {f"tree/{n}": ("directory", m.mode, b"") for n, m in members.items() if m.isdir()}
    wanted |= {f"tree/{n}": ("file", m.mode, _bytes_of(n)) for n, m in members.items() if m.isreg()}
    wanted["tree/link"] = ("link", 0, b"bin/tool")
    for path in ("tree", f"{await workdir(box)}/tree"):
        got = await _downloaded(box, path)
        got.pop("tree", None)  # the directory itself may have an entry
        equal(sorted(got), sorted(wanted), f"the names in the download of {path}")
        for name, facts in wanted.items():
            equal(got[name], facts, f"{name} in the download")
    equal(await box.read("tree/link"), _bytes_of("bin/tool"), "an uploaded file, read through an uploaded link")
    single = await _downloaded(box, "tree/private")
    equal(single, {"private": ("file", 0o600, _bytes_of("private"))}, "the download of one file")


@case(
    promise="Downloading what is not there raises FileNotFoundError.",
    why="An empty tar looks like an empty result: the patch to be graded is lost without a word.",
)
async def download_missing_is_told(bench: Bench) -> None:
    box = await bench.sandbox()
    try:
        whole = b"".join([piece async for piece in box.download("gone")])
    except FileNotFoundError:
        return
    broken(f"downloading what is not there gave {len(whole)} bytes")
