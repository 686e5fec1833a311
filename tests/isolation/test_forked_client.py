"""A client that forks, as multiprocessing does, and is then killed: its sandboxes go with it, not with the child."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

WORD = "2147480123"
GONE_S = 30.0
CLIENT = f"""
import asyncio, os, time
from excise.sandbox import Sandbox

async def main():
    async with Sandbox("namespace") as box:
        sleeping = asyncio.create_task(box.run(["sleep", "{WORD}"]))
        await box.run("until grep -aq '[s]leep.{WORD}' /proc/[0-9]*/cmdline 2>/dev/null; do :; done")
        child = os.fork()
        if child == 0:
            time.sleep(300)  # with copies of every descriptor its parent has
            os._exit(0)
        print(child, flush=True)
        await sleeping

asyncio.run(main())
"""


def sleeping() -> bool:
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cmdline").read_bytes() == f"sleep\0{WORD}\0".encode():
                return True
        except OSError:
            continue
    return False


def test_a_killed_clients_sandboxes_go_although_a_child_of_its_lives(runs_here: Callable[[str], None]) -> None:
    runs_here("namespace")
    client = subprocess.Popen([sys.executable, "-c", CLIENT], stdout=subprocess.PIPE, text=True)
    assert client.stdout is not None
    child = int(client.stdout.readline())
    try:
        assert sleeping()
        client.kill()
        client.wait()
        ends_s = time.monotonic() + GONE_S
        while sleeping() and time.monotonic() < ends_s:
            time.sleep(0.01)
        assert not sleeping()
    finally:
        os.kill(child, signal.SIGKILL)
        client.stdout.close()
