"""Where the C programs are: in the package itself, a directory for each kind of machine they run on."""

import hashlib
import platform
from pathlib import Path
from typing import Literal

import excise
from excise.errors import SubstrateError

Program = Literal["excise-guest", "excise-launch", "excise-boot"]


def program(name: Program, machine: str | None = None) -> Path:
    """The program called `name` for `machine` (as `uname -m` says it); for this one if not said."""
    machine = machine or platform.machine()
    path = Path(excise.__file__).parent / "native" / machine / name
    if not path.exists():
        raise SubstrateError(
            f"{name} for {machine} is not built: run `make native`, which needs a C compiler, or install a wheel"
        )
    return path


def guest_image(machine: str | None = None) -> str:
    """The image that holds the guest and nothing else, at /excise-guest; a guest that was built anew has another tag."""
    digest = hashlib.sha256(program("excise-guest", machine).read_bytes()).hexdigest()
    return f"excise/guest:{digest[:12]}"
