"""The process that works on trees it is handed as descriptors: several requests at once, each in a thread of its own.

A request is a packet of JSON with descriptors beside it, an answer the same; what a packet cannot hold is in a memory file. It
runs on the standard library alone, where its user is not root in a user namespace with the launcher's ids, and ends with its
client.
"""

import array
import base64
import json
import os
import resource
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from excise.storage import userspace
from excise.storage.trees import copy, whole
from excise.storage.trees.diff import diff

MOST_DESCRIPTORS = 250  # the kernel passes 253 at once
PACKET_BYTES = 65536
_INTEGER = array.array("i")


class Stopped(Exception):  # noqa: N818 - not an error: the answer to a cancellation
    """The client no longer wants to know."""


def _diff(given: Sequence[int], asked: dict[str, Any], check: whole.Check) -> list[list[object]]:
    count, contents, most_bytes = asked["tops"], asked["contents"], asked["most_bytes"]
    found = diff(given[:count], given[count:], contents=contents, most_bytes=most_bytes, check=check)
    return [
        [os.fsdecode(one.path), one.kind, one.before_mode, one.mode, _in_text(one.before), _in_text(one.after)] for one in found
    ]


def _in_text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


_VERBS: dict[str, Callable[[list[int], dict[str, Any], whole.Check], object]] = {
    "digest": lambda given, _, check: whole.digest(given[0], check),
    "usage": lambda given, _, check: whole.usage(given[0], check),
    "remove": lambda given, _, check: whole.remove(given[0], check),
    "squash": lambda given, asked, check: copy.squash(given[:-1], given[-1], asked["most_bytes"], check),
    "diff": _diff,
}


class _Server:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._stops: dict[int, threading.Event] = {}

    def serve(self) -> None:
        """Until the client is gone. What is still being done then is nobody's any more, and ends at once."""
        while (packet := receive(self._control)) is not None:
            asked, given = packet
            number = asked["id"]
            if asked["verb"] == "stop":
                if (stop := self._stops.get(number)) is not None:
                    stop.set()
                continue
            stop = self._stops[number] = threading.Event()
            threading.Thread(target=self._answer, args=(number, asked, given, stop), daemon=True).start()

    def _answer(self, number: int, asked: dict[str, Any], given: list[int], stop: threading.Event) -> None:
        try:
            said = self._work(asked, given, stop)
        finally:
            for descriptor in given:
                os.close(descriptor)
            self._stops.pop(number, None)
        self._tell({"id": number, **said})

    def _work(self, asked: dict[str, Any], given: list[int], stop: threading.Event) -> dict[str, object]:
        def check() -> None:
            if stop.is_set():
                raise Stopped

        if len(given) != asked["descriptors"]:
            return {"error": "os", "errno": 24, "text": "its descriptors did not arrive"}
        try:
            return {"done": _VERBS[asked["verb"]](given, asked, check)}
        except Stopped:
            return {"error": "stopped"}
        except whole.TreeError as error:
            return {"error": "tree", "text": str(error)}
        except OSError as error:
            name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else None
            return {"error": "os", "errno": error.errno, "text": error.strerror, "name": name}
        except Exception as error:  # noqa: BLE001 - a mistake of ours is told to who asked, and the others go on
            return {"error": "ours", "text": repr(error)}

    def _tell(self, said: dict[str, object]) -> None:
        data = json.dumps(said).encode()
        try:
            if len(data) <= PACKET_BYTES:
                self._control.send(data)
                return
            file = os.memfd_create("excise")
            with open(file, "wb") as body:  # noqa: PTH123 - it is a descriptor
                body.write(data)
                body.flush()
                socket.send_fds(self._control, [json.dumps({"id": said["id"]}).encode()], [file])
        except OSError:  # nobody is there to be told
            os._exit(0)


def receive(control: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next packet and its descriptors, closed on exec; None when the other side is gone."""
    room = socket.CMSG_SPACE((MOST_DESCRIPTORS + 3) * _INTEGER.itemsize)
    try:
        data, extra, _, _ = control.recvmsg(PACKET_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    except ConnectionError:
        return None
    given = array.array("i")
    for level, kind, payload in extra:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            given.frombytes(payload[: len(payload) - len(payload) % _INTEGER.itemsize])
    return (json.loads(data), list(given)) if data else None


def main(control: int) -> None:
    """The whole life of the process, given the descriptor of its client's socket."""
    userspace.enter()
    os.umask(0)
    # A descriptor for each directory on the way down, of each layer; and as deep as trees may be, a few calls each.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    sys.setrecursionlimit(40 * whole.MOST_LEVELS)
    _Server(socket.socket(fileno=control)).serve()
    os._exit(0)
