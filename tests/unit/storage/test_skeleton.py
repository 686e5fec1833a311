"""image="host" shows the machine's programs and nothing of its user's."""

import asyncio
import os
import re
import stat
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from excise.errors import SpecError
from excise.storage import skeleton, store
from excise.storage.image import Image, resolve
from excise.storage.skeleton import describe


def host() -> Image:
    return asyncio.run(resolve("host"))


def install(prefix: Path) -> Path:
    """What an interpreter's prefix looks like, with secrets beside it."""
    for part in ("bin", "lib/python3.11", "include", "share"):
        (prefix / part).mkdir(parents=True)
    (prefix / "lib64").symlink_to("lib")
    (prefix / "pip.conf").write_text("password")
    (prefix / ".condarc").write_text("token")
    return prefix


@pytest.mark.usefixtures("home")
def test_the_top_is_exactly_this(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    image = host()
    links = {name for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32") if Path("/", name).is_dir()}
    assert {path.name for path in image.root.iterdir()} == {"dev", "etc", "proc", "sys", "tmp", "usr", "var", "work"} | links
    assert {inside for _, inside in image.binds} - {f"/{name}" for name in links} == {"/usr"}
    assert all(host == inside or Path(inside).resolve() == Path(host) for host, inside in image.binds)
    assert image.env == {"PATH": store.PATH, "HOME": "/work", "LANG": "C.UTF-8"}
    assert (image.workdir, image.user) == ("/work", None)
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", image.digest)
    modes = {name: stat.S_IMODE((image.root / name).stat().st_mode) for name in ("tmp", "var/tmp", "work", "usr")}
    assert modes == {"tmp": 0o1777, "var/tmp": 0o1777, "work": 0o777, "usr": 0o755}
    assert [path for name in ("usr", "work", "tmp", "dev") for path in (image.root / name).iterdir()] == []


@pytest.mark.usefixtures("home")
def test_etc_is_made_not_copied() -> None:
    etc = host().root / "etc"
    may_be = {"alternatives", "group", "hosts", "ld.so.cache", "localtime", "nsswitch.conf", "os-release", "passwd"}
    may_be |= {"resolv.conf", "ssl", "timezone"}
    assert {path.name for path in etc.iterdir()} <= may_be
    assert [line.split(":")[0] for line in (etc / "passwd").read_text().splitlines()] == ["root", "user", "nobody"]
    assert (etc / "resolv.conf").read_text() == ""
    assert str((etc / "localtime").readlink()).endswith("Etc/UTC")


@pytest.mark.usefixtures("home")
def test_the_tar_is_the_tree() -> None:
    image = host()
    assert image.tar is not None
    with tarfile.open(image.tar) as tar:
        inside = {member.name for member in tar}
    found = {str(path.relative_to(image.root)) for path in image.root.rglob("*")}
    assert inside == found


@pytest.mark.usefixtures("home")
def test_it_is_made_once_and_the_same_from_the_same_machine() -> None:
    first = host()
    (first.root / "etc/hosts").read_text()
    written = first.root.stat().st_mtime_ns, first.root.stat().st_ino
    second = host()
    assert second == first
    assert (second.root.stat().st_mtime_ns, second.root.stat().st_ino) == written
    assert describe().tar() == describe().tar()


@pytest.mark.usefixtures("home")
def test_it_is_made_anew_when_the_machine_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skeleton, "_LIBRARIES", tmp_path / "ld.so.cache")
    seen: list[Image] = []
    for text in ("first", "second"):
        (tmp_path / "ld.so.cache").write_text(text)
        seen.append(host())
        assert (seen[-1].root / "etc/ld.so.cache").read_text() == text
    assert seen[0].digest != seen[1].digest


def test_many_processes_at_once_make_one(home: Path) -> None:
    script = "import asyncio; from excise.storage.image import resolve; print(asyncio.run(resolve('host')).digest)"
    running = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    digests = {process.communicate()[0].strip() for process in running}
    assert {process.returncode for process in running} == {0}
    assert len(digests) == 1
    assert len(list((home / "images").iterdir())) == 1


def test_an_interpreter_outside_usr_is_shown_but_not_what_lies_beside_it(tmp_path: Path) -> None:
    prefix = install(tmp_path / "python/3.11")
    made = describe(str(prefix))
    shown = {inside: host for inside, host in made.binds.items() if inside.startswith(str(prefix))}
    assert shown == {f"{prefix}/{part}": f"{prefix}/{part}" for part in ("bin", "include", "lib", "share")}
    assert made.links[f"{prefix}/lib64"[1:]] == "lib"
    assert made.path.startswith(f"{prefix}/bin:")
    assert all(str(path)[1:] in made.directories for path in (prefix, *prefix.parents) if path != Path("/"))


def test_an_interpreter_reached_by_a_link_is_shown_where_it_says_it_is(tmp_path: Path) -> None:
    real = install(tmp_path / "python/3.11.2")
    (tmp_path / "python/3.11").symlink_to("3.11.2")
    made = describe(str(tmp_path / "python/3.11"))
    assert made.binds[f"{tmp_path}/python/3.11/bin"] == f"{real}/bin"


@pytest.mark.parametrize("where", ["user", ".", "user/.local"])
def test_a_prefix_that_is_the_users_own_is_never_shown(tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    prefix = install(tmp_path / where)
    monkeypatch.setattr(skeleton, "PATH", "/usr/bin:/bin")
    made = describe(str(prefix))
    assert [host for host in made.binds.values() if host.startswith(str(tmp_path))] == []
    assert str(tmp_path) not in made.path


def test_without_any_other_python_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(skeleton, "PATH", str(tmp_path / "nothing"))
    with pytest.raises(SpecError, match="excise/base"):
        describe(str(install(tmp_path / ".local")))


@pytest.mark.parametrize("prefix", ["/", "/usr", "/usr/local"])
def test_a_prefix_in_usr_adds_nothing(prefix: str) -> None:
    assert describe(prefix).binds == describe("/usr").binds


@pytest.mark.usefixtures("home")
def test_planted_secrets_are_not_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "planted-4f1c9a"
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("PLANTED", secret)
    for place in ("user/.netrc", "user/.ssh/id", "user/.config/token"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(secret)
    planted = [Path("/etc/planted-secret"), Path("/root/planted-secret"), Path("/run/planted-secret")]
    if os.geteuid() == 0:
        for path in planted:
            path.write_text(secret)
    try:
        image = host()
    finally:
        for path in planted:
            if os.geteuid() == 0:
                path.unlink()
    assert image.tar is not None
    assert secret.encode() not in image.tar.read_bytes()
    assert secret not in repr(image)
    shown = [Path(host) for host, _ in image.binds]
    hidden = [*planted, tmp_path / "user", Path("/var/run/docker.sock"), Path("/etc"), Path("/home")]
    assert [place for place in hidden for bind in shown if place == bind or bind in place.resolve().parents] == []
