import asyncio
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from excise.storage.layers.jobs import Remove
from excise.storage.layers.workers import Workers


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache of the test's own."""
    path = tmp_path / "home"
    monkeypatch.setenv("EXCISE_HOME", str(path))
    yield path
    if path.exists():
        asyncio.run(discard(path))


async def discard(path: Path) -> None:
    """Remove a cache, with files of an ordinary user's subordinate ids in it."""
    async with Workers(1) as workers:
        await workers.run(Remove(str(path)))


def member(name: str, kind: bytes = tarfile.REGTYPE, **fields: object) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type = kind
    made.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
    for field, value in fields.items():
        setattr(made, field, value)
    return made


def write_tar(path: Path, *members: tarfile.TarInfo | tuple[tarfile.TarInfo, bytes], mode: str = "w") -> Path:
    """A tar of these members, each with its bytes if it has any, in this order and just as they are."""
    with tarfile.open(path, mode) as tar:  # pyright: ignore[reportCallIssue, reportArgumentType]
        for each in members:
            info, data = each if isinstance(each, tuple) else (each, b"")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path
