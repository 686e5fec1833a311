"""The parts of our end of a machine monitor that need no machine."""

import asyncio
import gzip
import lzma
import os
import stat
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from excise.errors import SpecError, SubstrateError
from excise.vmm import kernel, memory
from excise.vmm.accel import processors
from excise.vmm.disk import copy_sparse
from excise.vmm.initrd import entry
from excise.vmm.kept import kept, place
from excise.vmm.tools import find, run

ELF = b"\x7fELF" + bytes(range(200)) * 50


def test_an_entry_is_what_the_kernel_unpacks(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    archive.write_bytes(entry("a file", stat.S_IFREG | 0o640, b"content") + entry("TRAILER!!!", 0))
    assert len(archive.read_bytes()) % 4 == 0
    head = archive.read_bytes()
    assert head[:6] == b"070701"
    assert int(head[14:22], 16) == stat.S_IFREG | 0o640
    assert int(head[54:62], 16) == len(b"content")


@pytest.mark.parametrize("pack", [lzma.compress, gzip.compress], ids=["xz", "gzip"])
def test_a_kernel_is_unpacked_from_its_image(pack: Callable[[bytes], bytes]) -> None:
    assert kernel.unpacked(b"setup code\xfd7zX no magic" + pack(ELF) + b"what follows") == ELF


def test_a_kernel_packed_otherwise_is_left_as_it_is() -> None:
    assert kernel.unpacked(b"packed by something else") == b"packed by something else"


def test_a_kernels_release_is_read_from_its_header(tmp_path: Path) -> None:
    image = bytearray(0x1000)
    image[0x202:0x206] = b"HdrS"
    struct.pack_into("<H", image, 0x20E, 0x300)
    image[0x500:0x520] = b"6.1.0-7-cloud (builder)\0".ljust(32, b"\0")
    (tmp_path / "vmlinuz").write_bytes(image)
    assert kernel.release_of(tmp_path / "vmlinuz") == "6.1.0-7-cloud"


def test_modules_come_after_what_they_depend_on(tmp_path: Path) -> None:
    tree = tmp_path / "kernel/drivers"
    tree.mkdir(parents=True)
    (tree / "one.ko").write_bytes(b"\0depends=two,has-built\0")
    (tree / "two.ko.xz").write_bytes(lzma.compress(b"\0depends=\0"))
    (tmp_path / "modules.builtin").write_text("kernel/lib/has-built.ko\n")
    found = kernel.Kernel(image=tmp_path, modules=tmp_path, release="6.1")
    assert [name for name, _ in kernel.modules(found, ("one",))] == ["two.ko", "one.ko"]
    with pytest.raises(SpecError, match="has no module three"):
        kernel.modules(found, ("three",))


def test_a_copy_has_holes_where_its_source_has_them(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    with source.open("wb") as file:
        file.truncate(8 << 20)
        file.seek(4 << 20)
        file.write(b"data" * 1024)
    with source.open("rb") as read, target.open("wb") as write:
        copy_sparse(read.fileno(), write.fileno())
    assert target.read_bytes() == source.read_bytes()
    assert target.stat().st_blocks <= source.stat().st_blocks + 16


_MAPS = """
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
memory = mmap.mmap(file, 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
memory[4096 * 3 : 4096 * 3 + 4] = b"mine"
memory[4096 * 7 : 4096 * 7 + 4] = bytes(4)
memory[100]
print("mapped", flush=True)
sys.stdin.read()
"""


def test_what_a_process_wrote_over_a_file_is_saved(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.write_bytes(b"".join(bytes([page]) * 4096 for page in range(1, 17)))
    process = subprocess.Popen(
        [sys.executable, "-c", _MAPS, str(base)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    with base.open("rb") as file:
        base.unlink()  # a snapshot that was discarded
        memory.save(process.pid, file.fileno(), tmp_path / "saved")
    process.communicate("")
    wanted = bytearray(b"".join(bytes([page]) * 4096 for page in range(1, 17)))
    wanted[4096 * 3 : 4096 * 3 + 4] = b"mine"
    wanted[4096 * 7 : 4096 * 7 + 4] = bytes(4)
    assert (tmp_path / "saved").read_bytes() == wanted


def test_what_is_erased_is_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    path.write_bytes(b"a secret and a secret, secrets")
    assert memory.erase(path, [b"secret"]) == 3
    assert b"secret" not in path.read_bytes()


def test_of_two_who_want_the_same_one_makes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXCISE_HOME", str(tmp_path / "home"))
    made: list[Path] = []

    async def fill(making: Path) -> None:
        await asyncio.sleep(0.05)
        made.append(making)
        making.write_text("whole")

    async def both() -> None:
        await asyncio.gather(kept("thing", fill), kept("thing", fill))

    asyncio.run(both())
    assert (len(made), place("thing").read_text()) == (1, "whole")


def test_what_cannot_be_made_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXCISE_HOME", str(tmp_path / "home"))

    async def fill(making: Path) -> None:
        making.write_text("half")
        raise OSError(28, "No space left on device", str(making))

    with pytest.raises(SubstrateError, match="is full: free some space there, or set EXCISE_HOME"):
        asyncio.run(kept("thing", fill))
    assert [path.name for path in place().iterdir() if not path.name.startswith(".lock")] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "small", str(home)], check=True)
    try:
        monkeypatch.setenv("EXCISE_HOME", str(home))

        async def fill(making: Path) -> None:
            making.write_bytes(bytes(1 << 20))

        with pytest.raises(SubstrateError, match="is full"):
            asyncio.run(kept("thing", fill))
    finally:
        subprocess.run(["umount", str(home)], check=True)


def test_a_missing_program_names_its_package() -> None:
    with pytest.raises(SubstrateError, match="no-such-program is missing: run `apt-get install that-has-it`"):
        find("no-such-program", "that-has-it")


def test_a_program_that_fails_is_told_with_its_words() -> None:
    with pytest.raises(SubstrateError, match="sh failed with 3: why"):
        asyncio.run(run("/bin/sh", "-c", "echo why >&2; exit 3"))


def test_an_emulated_processor_keeps_its_barriers() -> None:
    """Which QEMU leaves out for one that no other can join; its devices are threads of their own."""
    assert processors("tcg", 1) == ("-smp", "1,maxcpus=2")
    assert processors("tcg", 4) == ("-smp", "4,maxcpus=4")
    assert processors("kvm", 1) == ("-smp", "1")
