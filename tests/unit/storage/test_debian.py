"""excise/base: built whole or not at all, and what is built is what the recipe says.

The real build takes a minute and the network, so these tests run it in no form; a stand-in for mmdebstrap ends in every way
it can, and the image itself is looked at where it is built already.
"""

import asyncio
import os
import re
import stat
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from excise.errors import SpecError, SubstrateError
from excise.storage import debian
from excise.storage.image import Image, build, resolve

from .conftest import member, write_tar


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Put a shell script in mmdebstrap's place."""

    def put(script: str) -> Path:
        place = tmp_path / "programs"
        place.mkdir()
        (place / "mmdebstrap").write_text(f"#!/bin/sh\n{script}\n")
        (place / "mmdebstrap").chmod(0o755)
        monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
        return place

    return put


def built(lines: list[str] | None = None) -> Image:
    return asyncio.run(build("excise/base", (lines if lines is not None else []).append))


def left(home: Path) -> list[Path]:
    return list((home / "images").iterdir())


def test_it_is_built_once(home: Path, tmp_path: Path, stand_in: Callable[[str], Path]) -> None:
    tar = write_tar(tmp_path / "x.tar", member("work", tarfile.DIRTYPE, mode=0o777), (member("etc/name"), b"base"))
    log = tmp_path / "log"
    stand_in(
        f"""printf '%s ' "$SOURCE_DATE_EPOCH" "$@" >> {log}; echo "I: working" >&2
        for word; do case $word in */root.tar) cp {tar} "$word";; esac; done"""
    )
    lines: list[str] = []
    image = built(lines)
    assert lines == ["I: working", "unpacking"]
    assert (image.root / "etc/name").read_text() == "base"
    assert image.tar is not None
    assert image.tar.read_bytes() == tar.read_bytes()
    assert (image.name, image.workdir, image.env["HOME"]) == ("excise/base", "/work", "/work")
    assert {path.name for path in image.root.parent.iterdir()} == {"image.json", "root", "root.tar"}
    assert built() == image == asyncio.run(resolve("excise/base"))
    asked = log.read_text()
    assert asked.count("--variant=minbase ") == 1
    assert all(word in asked for word in ("python3-pytest,", " bookworm "))
    assert re.match(r"\d+ ", asked)
    assert left(home) == [image.root.parent]


@pytest.mark.usefixtures("home")
def test_not_built_says_how() -> None:
    with pytest.raises(SpecError, match=r"run: excise image build excise/base$"):
        asyncio.run(resolve("excise/base"))


def test_no_mmdebstrap_says_how_to_get_it(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SpecError, match="apt-get install mmdebstrap"):
        built()
    assert left(home) == []


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("E: Failed to fetch http://mirror/InRelease Could not resolve 'mirror'", "network there.*Could not resolve 'mirror'"),
        ("tar: root.tar: write: No space left on device", "disk is full.*EXCISE_HOME"),
    ],
)
def test_a_failed_build_is_one_sentence_and_leaves_nothing(
    home: Path, stand_in: Callable[[str], Path], said: str, sentence: str
) -> None:
    stand_in(f"""for word; do case $word in */root.tar) echo half > "$word";; esac; done; echo "{said}" >&2; exit 25""")
    with pytest.raises(SubstrateError, match=sentence) as failed:
        built()
    assert "\n" not in str(failed.value)
    assert left(home) == []


def test_a_tar_that_was_not_finished_is_not_used(home: Path, stand_in: Callable[[str], Path]) -> None:
    stand_in("""for word; do case $word in */root.tar) echo half > "$word";; esac; done""")
    with pytest.raises(SpecError, match="excise/base cannot be unpacked"):
        built()
    assert left(home) == []


def test_cancelling_ends_the_build_and_all_it_started(home: Path, tmp_path: Path, stand_in: Callable[[str], Path]) -> None:
    stand_in(f"""trap 'echo cleaned > {tmp_path}/cleaned; exit 1' TERM; sh -c 'echo "child $$" >&2; exec sleep 1000' & wait""")

    async def main() -> str:
        said: asyncio.Queue[str] = asyncio.Queue()
        task = asyncio.create_task(build("excise/base", said.put_nowait))
        child = (await said.get()).split()[1]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return child

    child = asyncio.run(main())
    assert (tmp_path / "cleaned").read_text() == "cleaned\n"
    # Its parent is gone: until init has reaped it, it may be a zombie, which runs nothing.
    state = Path(f"/proc/{child}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"
    assert left(home) == []


@pytest.fixture
def base(must_work: Callable[[str, str], None]) -> Image:
    try:
        return debian.built()
    except SpecError as error:
        must_work("base", str(error))
        raise


def test_the_real_image_is_what_the_recipe_says(base: Image) -> None:
    root = base.root
    assert [name for name in ("python3", "git", "ps", "bash", "pytest-3") if not (root / "usr/bin" / name).exists()] == []
    assert stat.S_IMODE((root / "work").stat().st_mode) == 0o777
    assert {"dev", "proc", "sys", "tmp"} <= {path.name for path in root.iterdir()}
    assert [path for path in (root / "var/lib/apt/lists").rglob("*") if path.is_file() and path.stat().st_size] == []
    assert (root / "etc/resolv.conf").read_text() == ""
    assert (root / "etc/hostname").read_text() == "sandbox\n"
    assert (root / "etc/apt/sources.list").read_text() == "deb http://deb.debian.org/debian bookworm main\n"
    assert list((root / "etc/apt/sources.list.d").iterdir()) == []


def test_the_real_image_runs_python_from_its_compiled_files(base: Image) -> None:
    if os.geteuid() != 0:
        pytest.skip("chroot takes root")
    command = ["chroot", str(base.root), "python3", "-B", "-v", "-c", "import pytest, json"]
    seen = subprocess.run(command, env=dict(base.env), capture_output=True, text=True, check=True)
    assert "matches" in seen.stderr
    assert "bytecode is stale" not in seen.stderr
