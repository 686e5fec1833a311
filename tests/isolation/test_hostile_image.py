"""Images whose links lead out of them: what the launcher makes, mounts and opens at their paths stays inside."""

import contextlib
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from excise.errors import CreateError, SpecError
from excise.spec import Mount, Spec
from excise.sync import Sandbox
from reachable import reachable

OUT = {"absolute": "/..", "relative": "../..", "by /proc": "/proc/self/root/.."}


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A directory of the host's, open to whoever reaches it, and a private one in it."""
    reachable(tmp_path)
    found = tmp_path / "victim"
    found.mkdir()
    found.chmod(0o777)
    (found / "private").mkdir(mode=0o700)
    return found


def seen(victim: Path) -> dict[str, int]:
    return {str(path.relative_to(victim)): path.lstat().st_mode for path in (victim, *victim.rglob("*"))}


def image(place: Path, program: Path, links: dict[str, str]) -> str:
    """A tar with one program and these links."""
    path = place / "image.tar"
    with tarfile.open(path, "w") as tar:
        entry = tarfile.TarInfo("attempts")
        entry.size, entry.mode = program.stat().st_size, 0o755
        tar.addfile(entry, io.BytesIO(program.read_bytes()))
        for name, target in links.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    return str(path)


@pytest.mark.parametrize("way", OUT)
@pytest.mark.parametrize("name", ["workdir", "tmp", "dev", "proc", "sys", "mounted"])
def test_links_of_an_image_do_not_lead_to_the_host(
    name: str, way: str, victim: Path, program: Path, runs_here: Callable[[str], None]
) -> None:
    runs_here("namespace")
    source = victim.parent / "source"
    source.mkdir()
    for place in ("", "/private"):
        before = seen(victim)
        links = {name: f"{OUT[way]}{victim}{place}"}
        mounts = (Mount(str(source), "/mounted/below"),) if name == "mounted" else ()
        spec = Spec(
            image=image(victim.parent, program, links), workdir="/workdir/made" if name == "workdir" else "/", mounts=mounts
        )
        with contextlib.suppress(CreateError, SpecError), Sandbox("namespace", spec, timeout_s=30):
            pass
        assert seen(victim) == before
