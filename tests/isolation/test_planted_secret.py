"""A secret planted where a trainer's secrets lie is not found from inside a sandbox made of the host's own files."""

import asyncio
import os
import secrets
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from excise import Sandbox, Spec

# Everything but /usr, which is the host's own and shown on purpose; and what the kernel says of processes.
SEARCH = r"""
for top in /*; do
    case $top in /usr | /proc | /sys) continue ;; esac
    [ -L "$top" ] && continue
    grep -rlsa -D skip "$NEEDLE" "$top" | sed 's/^/file /'
    find "$top" -name "*$NEEDLE*" 2>/dev/null
done
for process in /proc/[0-9]*; do
    for part in environ cmdline; do
        tr '\0' '\n' 2>/dev/null < "$process/$part" | grep -sa "$NEEDLE" | grep -vsa "^NEEDLE=" && echo "$process/$part"
    done
    [ -e "$process/root/etc/planted-$NEEDLE" ] && echo "$process/root"
done
env | grep "$NEEDLE" | grep -v "^NEEDLE="
for path in /home /run/docker.sock /var/run/docker.sock; do [ -e "$path" ] && echo "$path is there"; done
:
"""


def writable(directory: Path) -> bool:
    return directory.is_dir() and os.access(directory, os.W_OK)


@pytest.fixture
def needle(monkeypatch: pytest.MonkeyPatch) -> Generator[str]:
    """A secret in $HOME, /etc, /root, /run and the environment, as far as this user may put one there."""
    text = secrets.token_hex(16)
    monkeypatch.setenv("PLANTED_SECRET", text)
    places = {Path.home(), Path("/etc"), Path("/root"), Path("/run")}
    planted = [place / f"planted-{text}" for place in places if writable(place)]
    try:
        for path in planted:
            path.write_text(text)
        yield text
    finally:
        for path in planted:
            path.unlink(missing_ok=True)


def found(address: str, needle: str) -> str:
    async def look() -> str:
        async with Sandbox(address, Spec(image="host"), timeout_s=60) as box:
            # The needle is spelled backwards on its way in, so that the search does not find itself.
            await box.write("search.sh", SEARCH)
            seen = await box.run(
                'NEEDLE=$(printf %s "$DELEEN" | rev) sh search.sh; rm -f search.sh', env={"DELEEN": needle[::-1]}
            )
            assert seen.ok, seen.text
            return seen.text

    return asyncio.run(look())


@pytest.mark.parametrize("address", ["chroot", "chroot+guest", "bubblewrap", "runc", "docker", "gvisor", "gvisor+guest"])
def test_a_planted_secret_is_not_found_from_inside(address: str, needle: str, runs_here: Callable[[str], None]) -> None:
    runs_here(address)
    assert found(address, needle) == ""


def test_the_search_finds_what_is_there(needle: str, runs_here: Callable[[str], None]) -> None:
    """The same search, where the secret lies in the sandbox, sees it: it could have failed above."""
    runs_here("chroot")

    async def look() -> str:
        async with Sandbox("chroot") as box:
            await box.write("search.sh", SEARCH)
            await box.write("/etc/leak", needle)
            return (await box.run(["sh", "search.sh"], env={"NEEDLE": needle, "LEAK": needle})).text

    text = asyncio.run(look())
    assert "file /etc/leak" in text
    assert f"LEAK={needle}" in text
