"""image="host": this machine's own programs and nothing of its user's, without a download.

Shown are /usr, what /bin, /lib and the like are on this machine, and the interpreter's own directories, read-only. All else
is a small generated tree, the skeleton; so what is not written here, no secret in $HOME, /etc, /root or /run, is not inside.
"""

import asyncio
import hashlib
import io
import os
import shutil
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from excise.errors import SpecError
from excise.storage.background import Stop, in_thread
from excise.storage.store import PATH, Image, Record, find, identity, make, recall, remember
from excise.storage.unpack import unpack

WORKDIR = "/work"
_ALTERNATIVES = Path("/etc/alternatives")
_CERTIFICATES = (Path("/usr/share/ca-certificates"), Path("/usr/share/ca-certificates/mozilla"))
_LIBRARIES = Path("/etc/ld.so.cache")
_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_PREFIX_PARTS = ("bin", "include", "lib", "lib64", "libexec", "share", "ssl")
_EMPTY = {"dev": 0o755, "proc": 0o755, "sys": 0o755, "tmp": 0o1777, "var": 0o755, "var/tmp": 0o1777, "work": 0o777}
_ETC = {
    "passwd": f"root:x:0:0:root:{WORKDIR}:/bin/sh\nuser:x:1000:1000:user:{WORKDIR}:/bin/sh\n"
    f"nobody:x:65534:65534:nobody:{WORKDIR}:/usr/sbin/nologin\n",
    "group": "root:x:0:\ntty:x:5:\nuser:x:1000:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "resolv.conf": "",
    "timezone": "Etc/UTC\n",
}


class Skeleton(msgspec.Struct):
    """The generated tree, and what of the host is shown over it."""

    directories: dict[str, int] = {}
    files: dict[str, bytes] = {}
    links: dict[str, str] = {}
    binds: dict[str, str] = {}
    """Path inside to path on the host."""
    path: str = PATH

    def bind(self, host: Path, inside: Path) -> None:
        self.binds[str(inside)] = str(host)
        for parent in (inside, *inside.parents):
            if parent != Path("/"):
                self.directories.setdefault(str(parent.relative_to("/")), 0o755)

    def tar(self) -> bytes:
        """The tree as a tar: the same bytes for the same tree."""
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for member in self._members():
                tar.addfile(member, io.BytesIO(self.files.get(member.name, b"")))
        return stream.getvalue()

    def _members(self) -> Iterator[tarfile.TarInfo]:
        for name in sorted((*self.directories, *self.files, *self.links)):
            member = tarfile.TarInfo(name)
            if name in self.directories:
                member.type, member.mode = tarfile.DIRTYPE, self.directories[name]
            elif name in self.links:
                member.type, member.linkname, member.mode = tarfile.SYMTYPE, self.links[name], 0o777
            else:
                member.size = len(self.files[name])
            yield member


async def host() -> Image:
    """The image of this machine as it is now; its skeleton is made once, and again when what it is made from changes."""
    seen = _identity()
    known = recall(seen)
    if known is not None and (image := find(f"host-{known}")) is not None:
        return image
    skeleton = await asyncio.to_thread(describe)
    tar = await asyncio.to_thread(skeleton.tar)
    digest = hashlib.sha256(tar).hexdigest()

    def work(making: Path, stop: Stop) -> Record:
        (making / "root.tar").write_bytes(tar)
        (making / "root").mkdir()
        return Record(
            name="host",
            digest=f"sha256:{digest}",
            binds=tuple((host, inside) for inside, host in sorted(skeleton.binds.items())),
            env={"PATH": skeleton.path, "HOME": WORKDIR, "LANG": "C.UTF-8"},
            workdir=WORKDIR,
            size_bytes=unpack(making / "root.tar", making / "root", stop),
        )

    image = await make(f"host-{digest}", lambda making: in_thread(lambda stop: work(making, stop)))
    remember(seen, digest)
    return image


def _identity() -> str:
    """Changes with all that `describe` reads, this file too."""
    read = (
        *_CERTIFICATES,
        _ALTERNATIVES,
        _LIBRARIES,
        *(Path("/", name) for name in _LINKS),
        Path(sys.base_prefix),
        Path(__file__),
    )
    variables = [f"{name}={os.environ.get(name)}" for name in ("HOME", "XDG_DATA_HOME")]
    return "\n".join((sys.base_prefix, *variables, identity(*read)))


def describe(base_prefix: str | None = None) -> Skeleton:
    """The skeleton for this machine and the interpreter at `base_prefix`, this one's own if not said."""
    skeleton = Skeleton(directories={**_EMPTY, "etc": 0o755})
    skeleton.files = {f"etc/{name}": text.encode() for name, text in _ETC.items()}
    skeleton.links = {"etc/localtime": "/usr/share/zoneinfo/Etc/UTC", "etc/os-release": "../usr/lib/os-release"}
    skeleton.bind(Path("/usr"), Path("/usr"))
    for name in _LINKS:
        _add_link(skeleton, Path("/", name))
    _add_alternatives(skeleton, _ALTERNATIVES)
    _add_certificates(skeleton)
    if _LIBRARIES.is_file():
        skeleton.files["etc/ld.so.cache"] = _LIBRARIES.read_bytes()
    _add_interpreter(skeleton, Path(base_prefix or sys.base_prefix))
    return skeleton


def _add_link(skeleton: Skeleton, path: Path) -> None:
    """/bin and its like: a link into /usr where the host has merged them, else the directory itself."""
    if not path.is_dir():
        return
    if _within(path.resolve(), Path("/usr")):
        skeleton.links[path.name] = str(path.resolve().relative_to("/"))
    else:
        skeleton.bind(path.resolve(), path)


def _add_alternatives(skeleton: Skeleton, alternatives: Path) -> None:
    """Programs in /usr/bin that are links by way of /etc/alternatives (awk, pager, java) must find the other end."""
    if not alternatives.is_dir():
        return
    skeleton.directories["etc/alternatives"] = 0o755
    for link in alternatives.iterdir():
        if link.is_symlink() and (target := str(link.readlink())).startswith(("/usr/", "/bin/", "/sbin/", "/lib/")):
            skeleton.links[f"etc/alternatives/{link.name}"] = target


def _add_certificates(skeleton: Skeleton) -> None:
    """The public authorities, from /usr: not the host's own bundle, in which a private one may have been put."""
    found = sorted(path for directory in _CERTIFICATES for path in directory.glob("*.crt"))
    if not found:
        return
    skeleton.directories |= {"etc/ssl": 0o755, "etc/ssl/certs": 0o755}
    skeleton.files["etc/ssl/certs/ca-certificates.crt"] = b"".join(path.read_bytes() for path in found)
    skeleton.links["etc/ssl/cert.pem"] = "certs/ca-certificates.crt"


def _add_interpreter(skeleton: Skeleton, prefix: Path) -> None:
    """Show what an interpreter outside /usr is made of, at the same path; never a directory that is the user's own.

    Not the whole prefix, only the directories an installation has: beside them lie pip.conf and .condarc, with passwords.
    """
    real = prefix.resolve()
    if _within(real, Path("/usr")) or real == Path("/"):
        return
    if _is_users_own(prefix) or _is_users_own(real):
        if shutil.which("python3", path=PATH) is None:
            raise SpecError(
                f"image='host' cannot show the Python in {prefix}, your own files are there: use image='excise/base'"
            )
        return
    for part in _PREFIX_PARTS:
        if (real / part).is_symlink():
            target = str((real / part).readlink())
            if target in _PREFIX_PARTS:
                skeleton.links[str((prefix / part).relative_to("/"))] = target
        elif (real / part).is_dir():
            skeleton.bind(real / part, prefix / part)
    skeleton.path = f"{prefix}/bin:{PATH}"


def _is_users_own(prefix: Path) -> bool:
    """Whether people keep other things here: a home, what is above one, or ~/.local, whose share and bin are the user's."""
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - a user without a home is no error here
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local/share")
    private = (home, home.resolve(), home / ".local", data, Path("/root"), Path("/home"), Path("/etc"), Path("/run"))
    return any(_within(place, prefix) for place in private)


def _within(path: Path, directory: Path) -> bool:
    return path == directory or directory in path.parents
