"""`excise measure --detach`: the same command in a session of its own, with a log where its results are."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from excise.cli.sentences import say
from excise.meter.results import LOG, refuse_used

_MAIN = "from excise.cli import main; raise SystemExit(main())"


def detach(tokens: Sequence[str], path: Path, *, go_on: bool) -> None:
    """Start `excise measure` with `tokens` in the background; what it says goes to the log in `path`."""
    if not go_on:
        refuse_used(path)
        path.mkdir(parents=True, exist_ok=True)
    log = path / LOG
    with log.open("ab") as sink:
        process = subprocess.Popen(
            [sys.executable, "-c", _MAIN, "measure", *tokens],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
    # It outlives us on purpose, and is no child that anybody waits for.
    process.returncode = 0
    say(
        f"measuring in the background as process {process.pid}; `tail -f {log}` follows it, `kill {process.pid}` ends it "
        f"(whole blocks stay), and `excise measure --resume {path}` goes on"
    )
