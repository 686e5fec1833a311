"""The image's bash, found as the sandbox will see it and made to be executed only."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from excise.storage.image import Image
from excise.substrates.namespace.shell import Shells, opaque

TEXT = b"\x7fELF the image's own"


def image_at(root: Path, *, binds: tuple[tuple[str, str], ...] = (), path: str = "/usr/bin:/bin") -> Image:
    return Image(name="test", digest="sha256:0", root=root, binds=binds, env={"PATH": path}, workdir="/")


def put(place: Path, data: bytes = TEXT, mode: int = 0o755) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data)
    place.chmod(mode)


def found(image: Image) -> bytes | None:
    """What the descriptor that was found holds. Its owner may read it again only after a chmod."""
    descriptor = opaque(image)
    if descriptor is None:
        return None
    try:
        assert os.fstat(descriptor).st_mode & 0o7777 == 0o111
        Path(f"/proc/self/fd/{descriptor}").chmod(0o444)
        return Path(f"/proc/self/fd/{descriptor}").read_bytes()
    finally:
        os.close(descriptor)


def _plain(root: Path) -> None:
    put(root / "bin/bash")


def _by_links(root: Path) -> None:
    put(root / "usr/bin/real")
    (root / "usr/bin/bash").symlink_to("/alternatives/bash")
    (root / "alternatives").mkdir()
    (root / "alternatives/bash").symlink_to("../usr/bin/./real")


def _root_has_no_parent(root: Path) -> None:
    put(root / "opt/bash")
    (root / "bin").mkdir()
    (root / "bin/bash").symlink_to("../../../../../../opt/bash")


@pytest.mark.parametrize("lay", [_plain, _by_links, _root_has_no_parent], ids=lambda lay: lay.__name__)
def test_is_found_inside(lay: Callable[[Path], None], tmp_path: Path) -> None:
    lay(tmp_path)
    assert found(image_at(tmp_path)) == TEXT


def test_is_found_in_what_is_bound(tmp_path: Path) -> None:
    put(tmp_path / "host/bin/bash")
    (tmp_path / "root/usr").mkdir(parents=True)
    (tmp_path / "root/bin").symlink_to("usr/bin")
    image = image_at(tmp_path / "root", binds=((str(tmp_path / "host"), "/usr"),), path="/bin")
    assert found(image) == TEXT


@pytest.mark.parametrize("target", ["/bin/bash", "../../../../../../bin/bash", "bash", "/proc/self/exe"])
def test_a_link_out_of_the_image_leads_nowhere(target: str, tmp_path: Path) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/bash").symlink_to(target)
    assert found(image_at(tmp_path)) is None


def test_what_is_no_program_is_none(tmp_path: Path) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    os.mkfifo(tmp_path / "usr/bin/bash")
    put(tmp_path / "bin/bash", mode=0o644)
    assert found(image_at(tmp_path)) is None


def test_it_can_be_executed(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    put(tmp_path / "bin/bash", Path(bash).read_bytes())
    descriptor = opaque(image_at(tmp_path))
    assert descriptor is not None
    child = os.posix_spawn(f"/proc/self/fd/{descriptor}", ["bash", "-c", "exit 7"], {})
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    os.close(descriptor)


def test_one_copy_an_image_until_the_end(tmp_path: Path) -> None:
    put(tmp_path / "bin/bash")
    shells = Shells()
    first = shells.of(image_at(tmp_path))
    assert first is not None
    assert shells.of(image_at(tmp_path)) == first
    shells.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(first)
