"""Layers that mean harm are refused, by member and reason, and leave nothing; awkward ones that do not are taken."""

import asyncio
import gzip
import os
import tarfile
from pathlib import Path

import pytest
import zstandard

from excise.errors import ExciseError, SpecError
from excise.storage.layers.jobs import Unpack
from excise.storage.layers.store import Layer, LayerStore
from excise.storage.layers.workers import Workers
from excise.storage.oci.streams import FileSource, Limits, Stream
from oci_image import DIR, HARD, LINK, digest, entry, tar, xattrs

HOSTILE = {
    "absolute": ([entry("/etc/evil", b"x")], "'/etc/evil': its name is absolute"),
    "dotdot": ([entry("a/../../evil", b"x")], "leads out by '..'"),
    "deep": ([entry("d/" * 3000 + "x", b"x")], "its name is more than 256 directories deep"),
    "through a link": ([entry("a", kind=LINK, linkname="/"), entry("a/evil", b"x")], "'a/evil': it passes through 'a'"),
    "hard link out": ([entry("a", kind=HARD, linkname="../secret")], "its link's target leads out"),
    "absolute hard link": ([entry("a", kind=HARD, linkname="/etc/shadow")], "its link's target is absolute"),
    "hard link through a link": (
        [entry("d", kind=LINK, linkname="/etc"), entry("a", kind=HARD, linkname="d/shadow")],
        "passes through 'd'",
    ),
    "whiteout through a link": ([entry("d", kind=LINK, linkname="/"), entry("d/.wh.etc")], "passes through 'd'"),
    "opaque link": ([entry("d", kind=LINK, linkname="/"), entry("d/.wh..wh..opq")], "passes through 'd'"),
    "whiteout of dotdot": ([entry("d/.wh...")], "it hides no name"),
    "whiteout of nothing": ([entry("d/.wh.")], "it hides no name"),
    "device": ([entry("disk", kind=tarfile.BLKTYPE, devmajor=8)], "'disk': it is a device node"),
    "whiteout as a device": ([entry("etc/x", kind=tarfile.CHRTYPE)], "it is a device node"),
    "twice": ([entry("a", b"1"), entry("a", b"2")], "'a': its name is there twice"),
    "twice as a link": ([entry("a", b"1"), entry("./a", kind=LINK, linkname="/etc")], "its name is there twice"),
    "directory over a file": ([entry("a", b"1"), entry("a", kind=DIR)], "there already as a link or a file"),
    "speaks to overlayfs": ([entry("a", b"", pax_headers=xattrs(user__overlay__redirect=b"/"))], "would speak to overlayfs"),
    "speaks to overlayfs as root": (
        [entry("a", kind=DIR, pax_headers=xattrs(trusted__overlay__opaque=b"y"))],
        "would speak to overlayfs",
    ),
}


def unpacked(home: Path, path: Path, diff_id: str) -> Layer:
    async def main() -> Layer:
        async with Workers(1) as workers:
            return await LayerStore(home).add(FileSource(str(path)), diff_id, workers, named="the layer")

    return asyncio.run(main())


@pytest.mark.parametrize("case", HOSTILE)
def test_it_is_refused_by_name_and_leaves_nothing(home: Path, tmp_path: Path, case: str) -> None:
    entries, reason = HOSTILE[case]
    data = tar(*entries)
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(SpecError) as refused:
        unpacked(home, tmp_path / "x", digest(data))
    assert str(refused.value).startswith("the layer cannot be unpacked")
    assert reason in str(refused.value)
    assert list((home / "layers").iterdir()) == []


@pytest.mark.parametrize("case", ["gzip", "zstd", "sparse", "declared"])
def test_a_bomb_is_refused_before_it_fills_the_disk(tmp_path: Path, case: str) -> None:
    if case == "sparse":
        said = {"GNU.sparse.map": "0,0", "GNU.sparse.size": str(1 << 50), "GNU.sparse.name": "zeros"}
        data = tar(entry("zeros", pax_headers=said))
    elif case == "declared":
        data = tar(entry("zeros", bytes(64 << 20)))[:4096]
    else:
        data = tar(*(entry(f"zeros-{number}", bytes(1 << 20)) for number in range(64)))
    packed = {"gzip": gzip.compress, "zstd": zstandard.compress}.get(case, bytes)(data)
    (tmp_path / "x").write_bytes(packed)
    (tmp_path / "making").mkdir()
    job = Unpack(
        source=FileSource(str(tmp_path / "x")),
        making=str(tmp_path / "making"),
        named="the bomb",
        limits=Limits(most_bytes=16 << 20),
    )

    async def main() -> None:
        async with Workers(1) as workers:
            await workers.run(job)

    with pytest.raises(ExciseError, match=r"more than"):
        asyncio.run(main())
    written = sum(path.stat().st_blocks * 512 for path in (tmp_path / "making").rglob("*"))
    assert written <= 17 << 20


def test_what_grows_beyond_all_measure_is_refused() -> None:
    zeros = gzip.compress(bytes(64 << 20))
    stream = Stream(iter([zeros] * 1000), Limits())
    with pytest.raises(SpecError, match="more than 200 times its size"):
        for _ in stream:
            pass
    stream.close()
    assert stream.plain_bytes < 2 << 30


def test_awkward_layers_are_taken(home: Path, tmp_path: Path) -> None:
    data = tar(
        entry("late/file", b"x"),
        entry("late", kind=DIR, mode=0o711),
        entry("late", kind=DIR, mode=0o755),
        entry("dev/null", kind=tarfile.CHRTYPE, devmajor=1, devminor=3),
        entry(".wh..wh.plnk", kind=DIR),
        entry("both", b"kept"),
        entry(".wh.both"),
        entry("far", b"x", uid=1 << 30, gid=70_000),
        entry("n" * 255, b"x"),
    )
    (tmp_path / "x").write_bytes(data)
    tree = unpacked(home, tmp_path / "x", digest(data)).path
    assert (tree / "late/file").read_bytes() == b"x"
    assert (tree / "late").stat().st_mode & 0o777 == 0o755
    assert (tree / "both").read_bytes() == b"kept"
    assert list((tree / "dev").iterdir()) == [] if (tree / "dev").exists() else True
    if os.geteuid() == 0:
        assert ((tree / "far").stat().st_uid, (tree / "far").stat().st_gid) == (65534, 65534)


def test_sparse_files_in_each_of_gnus_ways(home: Path, tmp_path: Path) -> None:
    """What GNU tar writes is read back: compared with the file itself, and with holes."""
    import shutil
    import subprocess

    if shutil.which("tar") is None:
        pytest.skip("there is no tar to write them with")
    file = tmp_path / "holes"
    with file.open("wb") as out:
        for number in range(30):
            out.seek(number * 1_000_000)
            out.write(f"extent {number}".encode())
        out.truncate(40_000_000)
    ways = (["--format=gnu"], *(["--format=posix", f"--sparse-version={version}"] for version in ("0.0", "0.1", "1.0")))
    for number, way in enumerate(ways):
        path = tmp_path / f"{number}.tar"
        subprocess.run(["tar", "-S", *way, "-C", tmp_path, "-cf", path, "holes"], check=True, timeout=60)
        assert path.stat().st_size < 1_000_000
        layer = unpacked(home, path, digest(path.read_bytes()))
        made = layer.path / "holes"
        assert made.read_bytes() == file.read_bytes(), way
        assert made.stat().st_blocks * 512 < 4_000_000
