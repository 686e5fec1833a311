"""What a sandbox really sees of the host and of the sandbox beside it: each look is tried, none is derived.

    python bench/observe.py ADDRESS ... [--image excise/base] [--out FILE]

Two sandboxes of one substrate live side by side. One leaves marks (a process, a file, a segment, a port, a busy core), the
other looks for them, and for what the host knows of itself. `excise advise --table` reads the file.
"""

import argparse
import asyncio
import json
import secrets
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from excise.api import connect
from excise.errors import ExciseError, Unsupported
from excise.meter.provenance import provenance
from excise.sandbox import Sandbox
from excise.spec import Spec

WAIT_S = 600.0
BUSY_S = 2.0
NEAR_S = 2.0
"""Uptimes that differ by less are one."""


def host(path: str) -> str:
    return Path(path).read_text().strip()


async def said(box: Sandbox, script: str) -> str | None:
    """What it prints; None where it could not be tried."""
    seen = await box.run(script, timeout_s=120.0)
    return seen.stdout.decode(errors="replace").strip() if seen.ok else None


async def same_file(looks: Sandbox, path: str) -> bool | None:
    found = await said(looks, f"cat {path}")
    return None if found is None else found == host(path)


async def boot_id(looks: Sandbox, _: Sandbox) -> bool | None:
    return await same_file(looks, "/proc/sys/kernel/random/boot_id")


async def kernel_version(looks: Sandbox, _: Sandbox) -> bool | None:
    return await same_file(looks, "/proc/version")


async def memory_size(looks: Sandbox, _: Sandbox) -> bool | None:
    found = await said(looks, "grep MemTotal: /proc/meminfo")
    return None if found is None else found.split() == host("/proc/meminfo").split("\n")[0].split()


async def uptime(looks: Sandbox, _: Sandbox) -> bool | None:
    before = float(host("/proc/uptime").split()[0])
    found = await said(looks, "cut -d' ' -f1 /proc/uptime")
    after = float(host("/proc/uptime").split()[0])
    return None if found is None else before - NEAR_S <= float(found) <= after + NEAR_S


async def load(looks: Sandbox, neighbour: Sandbox) -> bool | None:
    """The averages change every five seconds: one of three readings must be the host's of just before or after."""
    del neighbour
    for _ in range(3):
        before = host("/proc/loadavg").split()[:3]
        found = await said(looks, "cat /proc/loadavg")
        if found is None:
            return None
        if found.split()[:3] in (before, host("/proc/loadavg").split()[:3]) and found.split()[:3] != ["0.00"] * 3:
            return True
    return False


async def busy(looks: Sandbox, neighbour: Sandbox) -> bool | None:
    """Whether the processor's counters move by what the neighbour burns, beyond what the one that looks does itself."""
    script = (
        f"a=$(awk '/^cpu /{{print $2+$3+$4}}' /proc/stat); sleep {BUSY_S}; awk -v a=$a '/^cpu /{{print $2+$3+$4-a}}' /proc/stat"
    )
    spin = f"timeout {BUSY_S * 1.5} sh -c 'while :; do :; done'; true"
    found, _ = await asyncio.gather(said(looks, script), neighbour.run(spin, timeout_s=120.0))
    return None if found is None else float(found) >= 0.5 * BUSY_S * 100


async def marked(looks: Sandbox, neighbour: Sandbox, script: str) -> bool | None:
    """Whether `script` says yes; None unless it does where the mark is: what finds nothing there finds nothing anywhere."""
    if await said(neighbour, f"{script} && echo yes; true") != "yes":
        return None
    return await said(looks, f"{script} && echo yes; true") == "yes"


async def processes(looks: Sandbox, neighbour: Sandbox) -> bool | None:
    seconds = f"7{secrets.randbelow(10**6):06d}"
    sleeping = asyncio.create_task(neighbour.run(["sleep", seconds], timeout_s=60.0))
    try:
        await asyncio.sleep(1.0)
        # A pattern that does not match itself, for it stands in a command line too.
        return await marked(
            looks, neighbour, f"cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -q 'slee[p] {seconds}'"
        )
    finally:
        sleeping.cancel()
        await asyncio.gather(sleeping, return_exceptions=True)


async def files(looks: Sandbox, neighbour: Sandbox) -> bool | None:
    name = f"/tmp/{secrets.token_hex(8)}"  # noqa: S108 - inside of a sandbox
    await neighbour.run(["touch", name])
    return await marked(looks, neighbour, f"test -e {name}")


async def segments(looks: Sandbox, neighbour: Sandbox) -> bool | None:
    """System V shared memory; its size is looked for, since two namespaces have the same numbers."""
    size = 4096 * (2 + secrets.randbelow(1000))
    await said(neighbour, f"ipcmk -M {size}")
    found = await marked(looks, neighbour, f"grep -q ' {size} ' /proc/sysvipc/shm")
    await said(neighbour, "ipcrm --all=shm")
    return found


async def port(looks: Sandbox, neighbour: Sandbox) -> bool | None:
    number = 20000 + secrets.randbelow(20000)
    serve = f"import socket,time; s=socket.create_server(('127.0.0.1', {number})); time.sleep(60)"
    serving = asyncio.create_task(neighbour.run(["python3", "-c", serve], timeout_s=60.0))
    ask = f"python3 -c \"import socket; socket.create_connection(('127.0.0.1', {number}), 2)\" 2>/dev/null"
    try:
        await asyncio.sleep(3.0)
        return await marked(looks, neighbour, ask)
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


Look = Callable[[Sandbox, Sandbox], Awaitable[bool | None]]
LOOKS: dict[str, Look] = {
    "the host's kernel build": kernel_version,
    "the host's boot id": boot_id,
    "its uptime": uptime,
    "its memory size": memory_size,
    "its load": load,
    "others' CPU time": busy,
    "others' processes": processes,
    "others' files": files,
    "others' shared memory": segments,
    "others' ports": port,
}


async def observed(address: str, image: str) -> dict[str, object]:
    async with connect(address) as substrate:
        spec = Spec(image=image)
        async with Sandbox(substrate, spec, wait_s=WAIT_S) as looks, Sandbox(substrate, spec, wait_s=WAIT_S) as neighbour:
            seen: dict[str, bool | None] = {}
            for name, look in LOOKS.items():
                try:
                    seen[name] = await look(looks, neighbour)
                except Unsupported:
                    seen[name] = None
    return {"address": address, "seen": seen}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("addresses", nargs="+")
    parser.add_argument("--image", default="excise/base")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    every: list[dict[str, object]] = []
    failed = 0
    for address in given.addresses:
        try:
            found = asyncio.run(observed(address, given.image))
        except ExciseError as error:
            failed += 1
            print(f"{address}: {error}", file=sys.stderr)
            continue
        every.append(found)
        print(f"{address}: {found['seen']}")
    if given.out and every:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        about = {"kind": "observe", "host": provenance(Path.cwd(), {}).host, "image": given.image, "addresses": every}
        given.out.write_text(json.dumps(about, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
