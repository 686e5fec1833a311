"""The cache and the state directory are found where the environment says, and are ours alone."""

import errno
import os
import stat
import tempfile
from pathlib import Path

import pytest

from excise.errors import SpecError
from excise.storage.home import cache_dir, state_dir

VARIABLES = ("EXCISE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "HOME")


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))


def test_excise_home_holds_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXCISE_HOME", str(tmp_path / "all"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert (cache_dir(), state_dir()) == (tmp_path / "all", tmp_path / "all/run")


def test_a_relative_excise_home_is_below_where_we_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EXCISE_HOME", "here")
    assert cache_dir() == tmp_path / "here"


def test_xdg_then_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (cache_dir(), state_dir()) == (tmp_path / "user/.cache/excise", tmp_path / f"temporary/excise-{os.geteuid()}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert (cache_dir(), state_dir()) == (tmp_path / "cache/excise", tmp_path / "excise")


def test_a_relative_xdg_directory_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert cache_dir() == tmp_path / "user/.cache/excise"


def test_nobody_else_may_enter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXCISE_HOME", str(tmp_path / "all"))
    (tmp_path / "all/run").mkdir(parents=True)
    (tmp_path / "all").chmod(0o755)
    (tmp_path / "all/run").chmod(0o777)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (cache_dir(), state_dir())] == [0o700, 0o700]


def test_a_directory_that_stays_open_to_others_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(path: Path, mode: int) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    (tmp_path / "all").mkdir(mode=0o755)
    monkeypatch.setenv("EXCISE_HOME", str(tmp_path / "all"))
    monkeypatch.setattr(Path, "chmod", read_only)
    with pytest.raises(SpecError, match="set EXCISE_HOME"):
        cache_dir()


def test_a_runtime_directory_of_someone_else_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", 4321, 4321)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "theirs"))
    assert state_dir() == tmp_path / "temporary/excise-0"


def test_a_directory_of_someone_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        (tmp_path / "theirs").mkdir()
        os.chown(tmp_path / "theirs", 4321, 4321)
        monkeypatch.setenv("EXCISE_HOME", str(tmp_path / "theirs"))
    else:
        monkeypatch.setenv("EXCISE_HOME", "/usr")
    with pytest.raises(SpecError, match="belongs to uid"):
        cache_dir()


def test_a_link_planted_in_a_shared_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    (tmp_path / "temporary").chmod(0o1777)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"temporary/excise-{os.geteuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SpecError, match="planted"):
        state_dir()


def test_a_place_that_cannot_be_made_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EXCISE_HOME", str(tmp_path / "file/below"))
    with pytest.raises(SpecError, match="set EXCISE_HOME to a directory you own"):
        cache_dir()
