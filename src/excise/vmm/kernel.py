"""The kernel that machines boot: Debian's for clouds, fetched once as a package, or one that is named.

It needs no root: the package is downloaded and unpacked into the cache, never installed.
"""

import asyncio
import lzma
import os
import platform
import re
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from excise.errors import SpecError, SubstrateError
from excise.vmm.kept import kept
from excise.vmm.tools import find, run

VARIABLE = "EXCISE_KERNEL"
MODULES_VARIABLE = "EXCISE_KERNEL_MODULES"
_PACKAGE = "linux-image-cloud-amd64"
_REMEDY = f"or name a kernel of your own: {VARIABLE}=/boot/vmlinuz-..., with its modules in {MODULES_VARIABLE}=/lib/modules/..."


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel and its modules, as files here."""

    image: Path
    """As QEMU loads it."""
    modules: Path
    """The directory of its modules, at any depth."""
    release: str


async def kernel(path: str | None = None) -> Kernel:
    """The kernel at `path`, or that the variable names, or Debian's."""
    named = path or os.environ.get(VARIABLE)
    if named:
        return await asyncio.to_thread(_named, named)
    if platform.machine() != "x86_64":
        raise SubstrateError(f"no kernel for {platform.machine()} is fetched yet: name one with {VARIABLE}=PATH")
    directory = await kept("kernel", _fetch)
    release = (directory / "release").read_text().strip()
    return Kernel(image=directory / "vmlinux", modules=directory / "modules", release=release)


def _named(name: str) -> Kernel:
    path = Path(name).expanduser()
    release = release_of(path)
    modules = Path(os.environ.get(MODULES_VARIABLE) or f"/lib/modules/{release}")
    if not modules.is_dir():
        raise SubstrateError(f"the modules of {path} ({release}) are not in {modules}: say where with {MODULES_VARIABLE}=PATH")
    return Kernel(image=path, modules=modules, release=release)


def release_of(path: Path) -> str:
    """What `uname -r` would say under the kernel at `path`, a bzImage."""
    try:
        with path.open("rb") as file:
            head = file.read(1 << 16)
    except OSError as error:
        raise SubstrateError(
            f"the kernel {path} cannot be read ({error.strerror}): name another one, or unset {VARIABLE}"
        ) from None
    if head[0x202:0x206] != b"HdrS":
        raise SubstrateError(f"{path} is no bzImage: name a kernel as /boot/vmlinuz-... is, or unset {VARIABLE}")
    begin = struct.unpack_from("<H", head, 0x20E)[0] + 0x200
    return head[begin : head.index(b"\0", begin)].decode("ascii", "replace").split(" ")[0]


async def _fetch(making: Path) -> None:
    """Debian's package for clouds: small, with virtio, and built to boot fast."""
    try:
        apt_cache, apt_get = find("apt-cache", "apt"), find("apt-get", "apt")
        shown = await run(apt_cache, "show", "--no-all-versions", _PACKAGE)
        await asyncio.to_thread(making.mkdir, mode=0o700)
        await run(apt_get, "download", _needed(shown), cwd=making)
        package = await asyncio.to_thread(lambda: next(making.glob("*.deb")))
        await run(find("dpkg-deb", "dpkg"), "-x", str(package), str(making / "unpacked"))
    except SubstrateError as error:
        raise SubstrateError(f"the kernel cannot be fetched ({error}): run `apt-get update` and try again, {_REMEDY}") from None
    await asyncio.to_thread(_arrange, making, package)


def _needed(shown: str) -> str:
    """The package that has the kernel itself, of what apt says of the one that always depends on the newest."""
    depends = re.search(r"^Depends: (linux-image-[^\s,]+)", shown, re.MULTILINE)
    if depends is None:
        raise SubstrateError(f"{_PACKAGE} depends on no kernel")
    return depends[1]


def _arrange(making: Path, package: Path) -> None:
    package.unlink()
    image = next((making / "unpacked/boot").glob("vmlinuz-*"))
    tree = next((making / "unpacked/lib/modules").iterdir())
    (making / "release").write_text(tree.name)
    tree.rename(making / "modules")
    (making / "vmlinux").write_bytes(unpacked(image.read_bytes()))
    image.rename(making / "vmlinuz")


def unpacked(image: bytes) -> bytes:
    """The kernel inside a bzImage: what it would unpack itself, which an emulated processor takes long for."""
    for magic, unpack in ((b"\xfd7zXZ\0", _xz), (b"\x1f\x8b\x08", _gzip)):
        at = image.find(magic)
        while at >= 0:
            found = unpack(image[at:])
            if found[:4] == b"\x7fELF":
                return found
            at = image.find(magic, at + 1)
    return image  # packed in a way we do not read: it boots all the same


def _xz(data: bytes) -> bytes:
    try:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(data)
    except lzma.LZMAError:
        return b""


def _gzip(data: bytes) -> bytes:
    try:
        return zlib.decompressobj(31).decompress(data)
    except zlib.error:
        return b""


# ---- modules


def modules(kernel: Kernel, names: Iterable[str]) -> list[tuple[str, bytes]]:
    """The modules called `names` and all they depend on, in an order that loads; those built in are left out."""
    paths = {_name(path.name): path for path in kernel.modules.rglob("*.ko*")}
    builtin_list = next(kernel.modules.rglob("modules.builtin"), None)
    builtin = {_name(Path(line).name) for line in builtin_list.read_text().split()} if builtin_list is not None else set[str]()
    loaded: dict[str, bytes] = {}

    def load(name: str) -> None:
        if name in loaded or name in builtin:
            return
        if name not in paths:
            raise SpecError(f"the kernel {kernel.release} has no module {name}: name another one with {VARIABLE}=PATH")
        data = _read(paths[name])
        depends = re.search(rb"\0depends=([^\0]*)\0", data)
        for other in depends[1].decode().split(",") if depends is not None and depends[1] else ():
            load(_name(other))
        loaded[name] = data

    for name in names:
        load(_name(name))
    return [(f"{name}.ko", data) for name, data in loaded.items()]


def _name(file: str) -> str:
    return file.split(".ko", maxsplit=1)[0].replace("-", "_")


def _read(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.decompress(data)
    if path.suffix == ".gz":
        return zlib.decompress(data, 31)
    if path.suffix != ".ko":
        raise SubstrateError(f"{path} is packed in a way we do not read: name a kernel whose modules are .ko, .ko.xz or .ko.gz")
    return data
