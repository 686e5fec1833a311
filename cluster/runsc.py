"""gVisor's runsc: built once from the Go module that gvisor/go.mod names, and kept by version where the substrate looks."""

import os
import re
import time
from pathlib import Path

from cluster import go

MODULE = Path(__file__).parent / "gvisor"
_PACKAGE = "gvisor.dev/gvisor/runsc"
_NAME = "runsc"


def version() -> str:
    """As go.mod has it: v0.0.0-DATE-COMMIT, say, of the branch that holds the generated code."""
    found = re.search(r"^\tgvisor\.dev/gvisor (v\S+)", (MODULE / "go.mod").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def program() -> Path:
    """The program, built now if it is not there."""
    return go.made(_cache() / version(), (_NAME,), _build) / _NAME


def _build(out: Path) -> None:
    go.tool()
    print(f"building gVisor {version()} into {out.parent}: once, 2 to 5 minutes on 2 cores", flush=True)
    began = time.monotonic()
    # Static: it executes itself again in a root that holds nothing else, not even a loader.
    go.build(MODULE, _PACKAGE, out / _NAME, f"-s -w -X {_PACKAGE}/version.version={version()}", CGO_ENABLED="0")
    print(f"  {_NAME} in {time.monotonic() - began:.0f} s", flush=True)


def _cache() -> Path:
    """In Excise's own cache, which the substrate reads."""
    if home := os.environ.get("EXCISE_HOME"):
        return Path(home) / _NAME
    caches = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(caches) / "excise" / _NAME
