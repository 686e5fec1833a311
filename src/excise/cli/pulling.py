"""A pull as it goes, for who watches: a bar for each image on a terminal, a line for each elsewhere."""

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from excise.storage.layers import jobs as said_by
from excise.storage.oci.pull import Pulled, Watcher, pull


class _Bars(Watcher):
    """Bars, and what there is to say above them."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def planned(self, name: str, total_bytes: int) -> None:
        self._tasks[name] = self._bars.add_task(name, total=total_bytes)

    def progressed(self, name: str, said: said_by.Progress) -> None:
        self._bars.advance(self._tasks[name], said.read_bytes)
        if said.text:
            self._bars.console.print(f"{name}: {said.text}", markup=False, highlight=False)

    def finished(self, pulled: Pulled) -> None:
        if (task := self._tasks.get(pulled.name)) is not None:
            self._bars.remove_task(task)
        self._bars.console.print(_outcome(pulled), markup=False, highlight=False, soft_wrap=True)


async def show(names: Sequence[str], *, jobs: int, keep_bytes: int | None, stall_s: float) -> int:
    """Pull, and show it; 1 if one of them did not come."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        pulled = await pull(names, jobs=jobs, keep_bytes=keep_bytes, watcher=_Bars(bars), stall_s=stall_s)
    came = [one for one in pulled if one.account is not None]
    read = sum(one.account.read_bytes for one in came if one.account)
    total = sum(one.account.total_bytes for one in came if one.account)
    sys.stdout.write(
        f"{len(came)} of {len(pulled)} images are here; {_mib(read)} came, {_mib(max(0, total - read))} was shared\n"
    )
    return 0 if len(came) == len(pulled) else 1


def _outcome(pulled: Pulled) -> str:
    if pulled.account is None:
        return f"{pulled.name}: {pulled.error}"
    account = pulled.account
    came = f"{account.layers - account.layers_there} of {account.layers} layers came"
    return f"{pulled.name}: {came}, {_mib(account.read_bytes)} of {_mib(account.total_bytes)}"


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.1f} MiB"
