"""Programs of this machine that are run for their effect: found by name, and what they say is in the error."""

import asyncio
import contextlib
import shutil
from pathlib import Path

from excise.errors import SubstrateError
from excise.handles import finish

_LONGEST_WORDS = 500
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def find(name: str, package: str) -> str:
    """The path of the program `name`; a SubstrateError that says which package has it, otherwise."""
    # An ordinary user's PATH often lacks /usr/sbin, where mkfs is.
    found = shutil.which(name) or shutil.which(name, path=_PATH)
    if found is None:
        raise SubstrateError(f"{name} is missing: run `apt-get install {package}`, or its like, and try again")
    return found


async def run(*argv: str, cwd: Path | None = None, stdin: Path | None = None) -> str:
    """Its stdout. A SubstrateError with the end of what it said if it fails; ended, and waited for, if we are cancelled."""
    with contextlib.ExitStack() as files:
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=cwd,
            stdin=files.enter_context(stdin.open("rb")) if stdin is not None else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            out, err = await process.communicate()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await finish(process.wait())
            raise
    if process.returncode:
        said = (err or out).decode("utf-8", "replace").strip()
        raise SubstrateError(f"{Path(argv[0]).name} failed with {process.returncode}: {said[-_LONGEST_WORDS:]}")
    return out.decode("utf-8", "replace")
