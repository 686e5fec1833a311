"""The store of layers: each unpacked once, never half, verified, and not collected while it is held."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from excise.errors import SpecError, SubstrateError
from excise.storage.layers.jobs import Progress
from excise.storage.layers.store import Layer, LayerStore
from excise.storage.layers.tree import OPAQUE
from excise.storage.layers.workers import Workers
from excise.storage.oci.streams import FileSource
from oci_image import CAPABILITY, DIR, FORMATS, HARD, digest, entry, tar, xattrs

CONTENT = (
    entry("d", kind=DIR, mode=0o755, uid=3, gid=4),
    entry("d/file", b"content", mode=0o4711, uid=7, gid=8),
    entry("d/same", kind=HARD, linkname="d/file"),
    entry("d/noted", b"x", pax_headers=xattrs(user__note=b"n")),
    entry("capable", b"x", pax_headers=xattrs(security__capability=CAPABILITY)),
    entry(".wh.gone"),
    entry("d/.wh..wh..opq"),
)


def with_store(home: Path, use: Callable[[LayerStore, Workers], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with Workers(2) as workers:
            await use(LayerStore(home), workers)

    asyncio.run(main())


async def added(store: LayerStore, workers: Workers, path: Path, data: bytes, **options: Any) -> Layer:
    path.write_bytes(data)
    return await store.add(FileSource(str(path)), options.pop("diff_id", digest(data)), workers, **options)


def made(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "layers").iterdir())


@pytest.mark.parametrize("compress", FORMATS, ids=["gzip", "zstd", "plain"])
def test_a_layer_is_as_overlayfs_stacks_it(home: Path, tmp_path: Path, compress: Callable[[bytes], bytes]) -> None:
    data = tar(*CONTENT)
    (tmp_path / "x").write_bytes(compress(data))

    async def use(store: LayerStore, workers: Workers) -> None:
        layer = await store.add(FileSource(str(tmp_path / "x")), digest(data), workers, digest=digest(compress(data)))
        assert layer == store.get(digest(data))
        assert layer.size_bytes == len(b"content") + 2
        whiteout = (layer.path / "gone").lstat()
        assert (stat.S_ISCHR(whiteout.st_mode), whiteout.st_rdev) == (True, 0)
        assert os.getxattr(layer.path / "d", OPAQUE) == b"y"
        assert os.getxattr(layer.path / "d/noted", "user.note") == b"n"
        assert (layer.path / "d/file").stat().st_ino == (layer.path / "d/same").stat().st_ino
        if os.geteuid() == 0:
            file = (layer.path / "d/file").stat()
            assert (stat.S_IMODE(file.st_mode), file.st_uid, file.st_gid) == (0o4711, 7, 8)
            assert os.getxattr(layer.path / "capable", "security.capability") == CAPABILITY
        await store.verify(layer.digest, workers)

    with_store(home, use)


def corrupt_content(tree: Path) -> None:
    before = (tree / "d/noted").stat()
    (tree / "d/noted").write_bytes(b"y")
    os.utime(tree / "d/noted", ns=(before.st_atime_ns, before.st_mtime_ns))


CORRUPTIONS: dict[str, tuple[Callable[[Path], object], str]] = {
    "content": (corrupt_content, "content of 'd/noted'"),
    "mode": (lambda tree: (tree / "capable").chmod(0o600), "mode of 'capable'"),
    "xattr": (lambda tree: os.setxattr(tree / "d/noted", "user.note", b"m"), "xattrs of 'd/noted'"),
    "missing": (lambda tree: (tree / "capable").unlink(), "'capable' is missing"),
    "added": (lambda tree: (tree / "capable.new").touch(), "'capable.new' was added"),
    "added last": (lambda tree: (tree / "z").touch(), "'z' was added"),
    "whiteout": (lambda tree: (tree / "gone").unlink(), "'gone' is missing"),
    "not opaque": (lambda tree: os.removexattr(tree / "d", OPAQUE), "xattrs of 'd'"),
    "record": (lambda tree: (tree.parent / "entries").write_bytes(b"x"), "record is damaged"),
}


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user may not write into others' files even to spoil them")
@pytest.mark.parametrize("how", CORRUPTIONS)
def test_a_corrupted_layer_is_found_and_named(home: Path, tmp_path: Path, how: str) -> None:
    spoil, what = CORRUPTIONS[how]

    async def use(store: LayerStore, workers: Workers) -> None:
        layer = await added(store, workers, tmp_path / "x", tar(*CONTENT))
        spoil(layer.path)
        with pytest.raises(SubstrateError) as found:
            await store.verify(layer.digest, workers)
        assert layer.digest in str(found.value)
        assert what in str(found.value)

    with_store(home, use)


def test_many_who_want_a_layer_have_it_unpacked_once(home: Path, tmp_path: Path) -> None:
    came: list[Progress] = []

    async def use(store: LayerStore, workers: Workers) -> None:
        path, data = tmp_path / "x", tar(*CONTENT)
        path.write_bytes(data)
        every = [store.add(FileSource(str(path)), digest(data), workers, progress=came.append) for _ in range(8)]
        assert len({layer.path for layer in await asyncio.gather(*every)}) == 1

    with_store(home, use)
    assert sum(one.read_bytes for one in came) == len(tar(*CONTENT))


@pytest.mark.parametrize("wrong", ["digest", "diff_id"])
def test_a_foreign_digest_is_refused(home: Path, tmp_path: Path, wrong: str) -> None:
    other = digest(b"another")

    async def use(store: LayerStore, workers: Workers) -> None:
        with pytest.raises(SubstrateError, match=f"what came is not {other}"):
            await added(store, workers, tmp_path / "x", tar(*CONTENT), **{wrong: other})

    with_store(home, use)
    assert made(home) == []


def test_a_cancelled_unpacking_leaves_nothing(home: Path, tmp_path: Path) -> None:
    async def use(store: LayerStore, workers: Workers) -> None:
        begun = asyncio.Event()
        data = tar(entry("big", os.urandom(32 << 20)))
        task = asyncio.create_task(added(store, workers, tmp_path / "x", data, progress=lambda _: begun.set()))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with_store(home, use)
    assert made(home) == []


def test_what_is_pinned_is_not_collected(home: Path, tmp_path: Path) -> None:
    async def use(store: LayerStore, workers: Workers) -> None:
        layer = await added(store, workers, tmp_path / "x", tar(*CONTENT))
        with store.pin((layer.digest,)):
            assert await store.remove(lambda: [layer.digest], workers) == ()
            assert store.get(layer.digest) is not None
        assert await store.remove(lambda: [layer.digest], workers) == (layer.digest,)

    with_store(home, use)
    assert made(home) == []
    assert [path.name for path in (home / "pins").iterdir()] == [".lock"]


def test_a_pin_ends_with_its_process_unless_it_has_time_left(home: Path) -> None:
    LayerStore(home)
    program = (
        "import sys, pathlib; from excise.storage.layers.store import LayerStore; s = LayerStore(pathlib.Path(sys.argv[1]));"
        "a = s.pin(('sha256:aa',)); b = s.pin(('sha256:bb',), for_s=3600); print('pinned', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "pinned\n"
    with LayerStore(home).pins.collecting() as pinned:
        assert pinned == {"sha256-aa", "sha256-bb"}
    child.send_signal(signal.SIGKILL)
    child.communicate()
    with LayerStore(home).pins.collecting() as pinned:
        assert pinned == {"sha256-bb"}


def test_what_a_killed_process_left_is_cleaned(home: Path) -> None:
    store = LayerStore(home)
    (store.root / ".making-sha256-aa-0" / "tree/deep").mkdir(parents=True)
    (store.root / ".gone-1/tree").mkdir(parents=True)

    async def use(store: LayerStore, workers: Workers) -> None:
        assert await store.clean(workers) == 2

    with_store(home, use)
    assert made(home) == []


def test_a_truncated_stream_is_refused(home: Path, tmp_path: Path) -> None:
    data = tar(*CONTENT, entry("big", os.urandom(1 << 20)))

    async def use(store: LayerStore, workers: Workers) -> None:
        for compress in FORMATS:
            with pytest.raises(SpecError, match=r"cut short|damaged"):
                await added(store, workers, tmp_path / "x", compress(data)[: len(compress(data)) // 2])

    with_store(home, use)
    assert made(home) == []
