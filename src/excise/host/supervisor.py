"""The small process that keepers are forked from, so that the user's own large one never forks.

It also is the last to go: when a keeper dies, by whatever hand, what was below it falls to the supervisor, which ends
it and removes the sandbox's directory.
"""

import contextlib
import os
import select
import signal
import socket
from typing import Any

from excise.host import keeper, packets
from excise.host.descendants import Tree, children_wake, children_wake_nobody, collect, let_none_stand_still
from excise.host.directories import remove
from excise.host.kernel import become_subreaper


class _Kept:
    """What the supervisor remembers of one keeper."""

    def __init__(self, directory: str, gone: int, *, keep: bool) -> None:
        self.directory = directory
        self.keep = keep
        self.gone = gone
        """Closed when nothing of the sandbox is left: the client waits for its end."""


class Supervisor:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._kept: dict[int, _Kept] = {}
        self._tree = Tree()

    def serve(self) -> None:
        """Until the client is gone and every keeper has followed it."""
        woken = children_wake()
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(woken, select.POLLIN)
        alone = False
        while not alone or self._kept:
            for descriptor, _ in poll.poll():
                if descriptor == woken:
                    os.read(woken, 512)
                    self._reap()
                elif (packet := packets.receive(self._control)) is None:
                    poll.unregister(self._control)
                    alone = True
                else:
                    self._open(packet[1])
        self._tree.end_all()

    def _open(self, descriptors: list[int]) -> None:
        """Fork a keeper. If that cannot be, the client sees its socket close; other sandboxes go on."""
        try:
            body, control, gone = descriptors
            request = packets.read_body(body)
            pid = os.fork()
        except (OSError, ValueError):  # no process or no descriptor to be had
            for descriptor in descriptors:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
            return
        if pid == 0:
            self._be_keeper(control, gone, request)
        os.close(control)
        self._kept[pid] = _Kept(request["directory"], gone, keep=request["keep"])

    def _be_keeper(self, control: int, gone: int, request: dict[str, Any]) -> None:
        with contextlib.suppress(BaseException):
            children_wake_nobody()
            self._control.close()
            # Only the supervisor may hold another sandbox's `gone`: a copy here would keep it from ever closing.
            for descriptor in (gone, *(kept.gone for kept in self._kept.values())):
                os.close(descriptor)
            keeper.run(socket.socket(fileno=control), request)
        os._exit(0)

    def _reap(self) -> None:
        dead: list[int] = []
        collect(dead.append)
        for pid in dead:
            kept = self._kept.pop(pid, None)
            if kept is not None:
                self._clear(kept)
        let_none_stand_still(self._kept)

    def _clear(self, kept: _Kept) -> None:
        """End what a dead keeper left (it fell to us, and only keepers are rightly ours), and remove its directory."""
        self._tree.kill_below((os.getpid(),), frozenset(self._kept))
        if not kept.keep:
            remove(kept.directory)
        os.close(kept.gone)


def _signals_as_new() -> None:
    """What our client ignores or blocks (a job in the background ignores Ctrl-C) must not reach a sandbox's programs."""
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def main(control: int) -> None:
    """The whole life of the process, given the descriptor of its client's socket."""
    _signals_as_new()
    become_subreaper()
    Supervisor(socket.socket(fileno=control)).serve()
