"""An image is somebody else's: its links lead nowhere but into it, also while its root is being made."""

import asyncio
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from excise import CreateError, Sandbox, Spec, SpecError
from excise.host.root import led


@pytest.mark.parametrize(
    ("links", "path", "found"),
    [
        ({}, "/a/b", "/a/b"),
        ({"a": "/etc"}, "/a/b", "/etc/b"),
        ({"a": "../../etc"}, "/a", "/etc"),
        ({"a": "b", "b": "c/d"}, "/a/./e//f", "/c/d/e/f"),
        ({}, "/../../x/..", ""),
    ],
)
def test_a_path_leads_where_it_would_inside(links: dict[str, str], path: str, found: str, tmp_path: Path) -> None:
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    assert led(str(tmp_path), path) == f"{tmp_path}{found}"


def test_links_in_a_circle_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        led(str(tmp_path), "/a")


@pytest.mark.parametrize("name", ["tmp", "dev", "work"])
def test_an_images_links_do_not_touch_the_host(name: str, tmp_path: Path, runs_here: Callable[[str], None]) -> None:
    runs_here("chroot")
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o700)
    image = tmp_path / "image.tar"
    with tarfile.open(image, "w") as tar:
        link = tarfile.TarInfo(name)
        link.type, link.linkname = tarfile.SYMTYPE, str(victim)
        tar.addfile(link)

    async def check() -> None:
        # There is no program in it: at the latest its first command fails, and by then the root has been made.
        with pytest.raises((CreateError, SpecError)):
            async with Sandbox("chroot", Spec(image=str(image), workdir="/work")):
                pass

    asyncio.run(check())
    assert victim.stat().st_mode & 0o777 == 0o700
    assert list(victim.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user has one uid")
def test_users_and_groups_are_those_of_the_image(runs_here: Callable[[str], None]) -> None:
    runs_here("chroot")

    async def check() -> None:
        async with Sandbox("chroot") as box:
            for user, seen in (
                ("nobody", "65534 65534\n"),
                ("nobody:tty", "65534 5\n"),
                ("4242:7", "4242 7\n"),
                ("4242", "4242 4242\n"),
            ):
                assert (await box.run("echo $(id -u) $(id -g)", user=user)).text == seen
            for user in ("nobody:nowhere", "no-such-user", "\u00b2"):
                refused = await box.run("true", user=user)
                assert refused.exit_code == 127
                assert b"in the image's /etc/" in refused.stderr

    asyncio.run(check())
