"""A sandbox's processes and their memory, read from its own /proc by file actions: no program is started."""

import msgspec

from excise.action import Batch, List, Read
from excise.errors import SpecError
from excise.looking.records import About
from excise.substrate import Handle

_PAGE_BYTES = 4096
_MOST_PROCESSES = 4096


async def usage(handle: Handle, about: About) -> About:
    """`about` with both; as it was where the sandbox has no processes of its own, or cannot say."""
    own = about.address.removeprefix("pool:").partition("?")[0] in ("namespace", "docker+guest")
    try:
        return await _counted(handle, about) if own else about
    except SpecError:
        return about  # paused


async def _counted(handle: Handle, about: About) -> About:
    listed = await handle.run(List("/proc"))
    pids = [entry.name for entry in listed.files if entry.name.isdigit()][:_MOST_PROCESSES]
    if not pids:
        return about
    reads = Batch(tuple(Read(f"/proc/{pid}/statm") for pid in pids), stop_on_failure=False)
    parts = (await handle.run(reads)).parts
    resident = [int(part.stdout.split()[1]) for part in parts if part.errno is None and part.stdout.count(b" ") > 1]
    return msgspec.structs.replace(about, processes=len(resident), memory_bytes=sum(resident) * _PAGE_BYTES)
