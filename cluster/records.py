"""Which process is whose: a pid alone may be anybody's by now, a pid and when it started is one process for ever."""

import json
import os
import select
import signal
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Record:
    """A process that was started here. `settings` is a digest of its command line and of the files it reads."""

    pid: int
    started_ticks: int
    boot: str
    settings: str

    @classmethod
    def of(cls, pid: int, settings: str) -> "Record":
        started_ticks = _started_ticks(pid)
        if started_ticks is None:
            raise ProcessLookupError(pid)
        return cls(pid, started_ticks, _BOOT.read_text().strip(), settings)

    @classmethod
    def read(cls, path: Path) -> "Record | None":
        """None where there is none, or one that was not written to its end."""
        try:
            return cls(**json.loads(path.read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def write(self, path: Path) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.new")
        new.write_text(json.dumps(asdict(self)) + "\n")
        new.rename(path)

    def runs(self) -> bool:
        return self.boot == _BOOT.read_text().strip() and _started_ticks(self.pid) == self.started_ticks

    def stop(self, patience_s: float) -> None:
        """End the process and wait until it has; killed if it does not end by itself. Another one of that pid is left alone."""
        with _held(self) as process:
            if process is None:
                return
            for signal_number, limit_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, 30.0)):
                signal.pidfd_send_signal(process, signal_number)
                if select.select([process], [], [], limit_s)[0]:
                    return
            raise TimeoutError(f"process {self.pid} does not end, even killed")


@contextmanager
def _held(record: Record) -> Generator[int | None]:
    """A descriptor of the very process, if it still runs: held first, then looked at, so it cannot become another meanwhile."""
    try:
        process = os.pidfd_open(record.pid)
    except ProcessLookupError:
        yield None
        return
    try:
        yield process if record.runs() else None
    finally:
        os.close(process)


def _started_ticks(pid: int) -> int | None:
    """When it started, in ticks since the machine did; None for one that is gone, or a zombie, which does nothing more."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if after_name[0] in "ZX" else int(after_name[19])
