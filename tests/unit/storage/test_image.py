"""Images by name, and the cache they lie in: whole or not there."""

import asyncio
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from excise.errors import SpecError, SubstrateError
from excise.storage import store
from excise.storage.image import build, kind, list_images, remove, resolve
from excise.storage.store import Record, find, make, remove_tree

from .conftest import member, write_tar


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("host", "host"),
        ("excise/base", "built"),
        ("./x", "tar"),
        ("/a/b.tar.gz", "tar"),
        ("../x.tgz", "tar"),
        ("x.tar", "tar"),
        ("python:3.11", "docker"),
        ("reg.example/a/b@sha256:00", "docker"),
    ],
)
def test_a_name_says_where_the_image_comes_from(name: str, expected: str) -> None:
    assert kind(name) == expected


def test_a_tar_is_unpacked_once_and_kept(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tar = write_tar(tmp_path / "x.tar.gz", (member("etc/name"), b"mine"), mode="w:gz")
    monkeypatch.chdir(tmp_path)
    image = asyncio.run(resolve("./x.tar.gz"))
    assert (image.root / "etc/name").read_text() == "mine"
    assert (image.name, image.workdir, image.user, image.binds) == (str(tar), "/", None, ())
    assert image.tar is not None
    assert image.tar.read_bytes() == tar.read_bytes()
    (image.root / "seen").touch()
    assert asyncio.run(resolve(str(tar))) == image
    assert (image.root / "seen").exists()
    shutil.copy(tar, tmp_path / "copy.tar")
    assert asyncio.run(resolve("copy.tar")).digest == image.digest
    assert len(list((home / "images").iterdir())) == 1


@pytest.mark.usefixtures("home")
def test_a_tar_written_anew_is_another_image(tmp_path: Path) -> None:
    first = asyncio.run(resolve(str(write_tar(tmp_path / "x.tar", (member("f"), b"1")))))
    second = asyncio.run(resolve(str(write_tar(tmp_path / "x.tar", (member("f"), b"2")))))
    assert [(image.root / "f").read_bytes() for image in (first, second)] == [b"1", b"2"]
    assert first.digest != second.digest


def test_a_refused_tar_leaves_nothing(home: Path, tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "x.tar", (member("a"), b"x"), member("../evil"))
    with pytest.raises(SpecError, match=f"^{tar} cannot be unpacked"):
        asyncio.run(resolve(str(tar)))
    assert list((home / "images").iterdir()) == []


@pytest.mark.usefixtures("home")
def test_no_such_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="there is no file"):
        asyncio.run(resolve(str(tmp_path / "x.tar")))
    with pytest.raises(SpecError, match="there is no file"):
        asyncio.run(resolve(f"{tmp_path}/"))


@pytest.mark.usefixtures("home")
def test_list_and_remove(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "x.tar", member("d", tarfile.DIRTYPE, mode=0), (member("f"), b"12345"))
    image = asyncio.run(resolve(str(tar)))
    assert list_images() == (image,)
    assert image.size_bytes == 5
    assert asyncio.run(remove(str(tar))) == (image,)
    assert list_images() == ()
    assert not image.root.exists()
    with pytest.raises(SpecError, match=r"holds no image.*nothing"):
        asyncio.run(remove(str(tar)))
    again = asyncio.run(resolve(str(tar)))
    assert asyncio.run(remove(again.digest)) == (again,)


@pytest.mark.usefixtures("home")
def test_only_our_own_image_is_built() -> None:
    with pytest.raises(SpecError, match="there are: excise/base, excise/machine"):
        asyncio.run(build("python:3.11", print))
    assert asyncio.run(build("host", print)).name == "host"


def test_what_a_killed_process_left_is_cleared_away(home: Path) -> None:
    for name in ("images/.making-k/root/old", "images/k/root/older"):
        (home / name).mkdir(parents=True)

    async def fill(making: Path) -> Record:
        assert list(making.iterdir()) == []
        (making / "root").mkdir()
        return Record(name="n", digest="sha256:0")

    image = asyncio.run(make("k", fill))
    assert [path.name for path in (home / "images").iterdir()] == ["k"]
    assert list(image.root.iterdir()) == []


def test_cancelled_while_it_is_made_it_is_not_there(home: Path) -> None:
    async def main() -> None:
        begun = asyncio.Event()

        async def fill(making: Path) -> Record:
            (making / "root").mkdir()
            begun.set()
            await asyncio.Event().wait()
            raise AssertionError

        task = asyncio.create_task(make("k", fill))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert find("k") is None
    assert list((home / "images").iterdir()) == []


def test_many_tasks_make_it_once(home: Path) -> None:
    made: list[Path] = []

    async def fill(making: Path) -> Record:
        made.append(making)
        await asyncio.sleep(0.01)
        (making / "root").mkdir()
        return Record(name="n", digest="sha256:0")

    async def main() -> None:
        images = await asyncio.gather(*(make("k", fill) for _ in range(5)))
        assert {image.root for image in images} == {home / "images/k/root"}

    asyncio.run(main())
    assert len(made) == 1


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path, must_work: Callable[[str, str], None]) -> None:
    """On a real full disk: a tmpfs of 256 KiB in a mount namespace that ends with the process."""
    tar = write_tar(tmp_path / "x.tar", (member("big"), os.urandom(1 << 20)))
    (tmp_path / "small").mkdir()
    script = (
        "import asyncio, os\nfrom excise.storage.image import resolve\n"
        f"try: asyncio.run(resolve({str(tar)!r}))\n"
        "except Exception as error: print(type(error).__name__, error, sep='|')\n"
        f"print(os.listdir({str(tmp_path / 'small/images')!r}))\n"
    )
    mount = f'mount -t tmpfs -o size=256k none {tmp_path}/small || exit 77; exec "$@"'
    inside = ["unshare", *(["-m"] if os.geteuid() == 0 else ["-rm"]), "sh", "-c", mount, "sh", sys.executable, "-c", script]
    env = {**os.environ, "EXCISE_HOME": str(tmp_path / "small")}
    seen = subprocess.run(inside, env=env, capture_output=True, text=True, check=False)
    if seen.returncode == 77 or "unshare" in seen.stderr:
        must_work("unshare", seen.stderr)
    kind_of, _, rest = seen.stdout.partition("|")
    assert kind_of == SubstrateError.__name__, seen
    assert rest.splitlines()[0].startswith(f"the disk of {tmp_path}/small is full: ")
    assert rest.splitlines()[1:] == ["[]"]


def test_a_read_only_cache_is_one_sentence(tmp_path: Path, must_work: Callable[[str, str], None]) -> None:
    tar = write_tar(tmp_path / "x.tar", (member("file"), b"x"))
    (tmp_path / "home").mkdir()
    script = (
        "import asyncio, subprocess\nfrom excise.storage.image import hold\n"
        f"asyncio.run(hold({str(tar)!r}))[1].close()\n"
        f"subprocess.run(['mount', '-o', 'remount,ro', {str(tmp_path / 'home')!r}], check=True)\n"
        f"try: asyncio.run(hold({str(tar)!r}))\n"
        "except Exception as error: print(type(error).__name__, error, sep='|')\n"
    )
    mount = f'mount -t tmpfs none {tmp_path}/home || exit 77; exec "$@"'
    inside = ["unshare", *(["-m"] if os.geteuid() == 0 else ["-rm"]), "sh", "-c", mount, "sh", sys.executable, "-c", script]
    env = {**os.environ, "EXCISE_HOME": str(tmp_path / "home")}
    seen = subprocess.run(inside, env=env, capture_output=True, text=True, check=False, timeout=60)
    if seen.returncode == 77 or "unshare" in seen.stderr:
        must_work("unshare", seen.stderr)
    assert seen.stdout.startswith(f"SubstrateError|the cache {tmp_path}/home cannot be used: Read-only file system"), seen


def test_a_tree_with_a_mount_in_it_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "tree/deep").mkdir(parents=True)
    script = (
        "import sys\nfrom pathlib import Path\nfrom excise.storage.store import remove_tree\n"
        "try: remove_tree(Path(sys.argv[1]))\nexcept Exception as error: print(error)\n"
    )
    mount = f'mount --bind {tmp_path}/held {tmp_path}/tree/deep || exit 77; exec "$@"'
    (tmp_path / "held").mkdir()
    (tmp_path / "held/file").touch()
    flags = ["-m"] if os.geteuid() == 0 else ["-rm"]
    argv = ["unshare", *flags, "sh", "-c", mount, "sh", sys.executable, "-c", script, str(tmp_path / "tree")]
    seen = subprocess.run(argv, capture_output=True, text=True, check=False)
    if seen.returncode == 77 or "unshare" in seen.stderr:
        pytest.skip(seen.stderr)
    assert "is mounted" in seen.stdout
    assert (tmp_path / "held/file").exists()


def test_a_tree_is_removed_whatever_its_modes(tmp_path: Path) -> None:
    (tmp_path / "tree/closed/below").mkdir(parents=True)
    (tmp_path / "tree/closed/below/file").touch()
    (tmp_path / "tree/link").symlink_to(tmp_path)
    (tmp_path / "tree/closed/below").chmod(0)
    (tmp_path / "tree/closed").chmod(0)
    remove_tree(tmp_path / "tree")
    assert list(tmp_path.iterdir()) == []


def test_a_tar_that_changes_while_it_is_read_is_not_used(home: Path, tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "x.tar", (member("f"), b"1"))
    store.remember(store.identity(tar), "sha256:" + "0" * 64)  # what the first reading found; the second finds other bytes
    with pytest.raises(SpecError, match="changed while it was read"):
        asyncio.run(resolve(str(tar)))
    assert list((home / "images").iterdir()) == []
