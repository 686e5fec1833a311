"""One sandbox's own process: it holds the place, starts a runner for each request, and dies when its client is gone."""

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable
from typing import Any

from excise.host import file_work, packets, root, runner, shell_session
from excise.host.descendants import Tree, children_wake, children_wake_nobody, let_none_stand_still, reap
from excise.host.kernel import become_subreaper
from excise.host.runner import Place


def _be_guest(place: Place, request: dict[str, Any], reply: socket.socket, streams: list[int]) -> None:
    """Become the guest, in the root. It is executed by descriptor, so that nothing of it is to be found there."""
    try:
        # Its children are found there, and most roots have none of their own.
        proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
        program = os.open(request["program"], os.O_RDONLY)
        place.enter(None, None)
        os.setsid()
        for number in (0, 1):
            os.dup2(streams[0], number)
        os.set_inheritable(proc, True)
        options = ["-p", str(proc), *(["-d"] if place.limited else [])]
        os.execve(program, ["excise-guest", *options], {})
    except OSError as error:
        runner.answer(reply, {"error": f"{error.strerror} ({error.filename or place.root or '/'})"})


def _listen(_: Place, request: dict[str, Any], reply: socket.socket, __: list[int]) -> None:
    """A listener in the keeper's own network: a descriptor works wherever it is handed to."""
    try:
        with socket.create_server((request["host"], request["port"]), backlog=128) as listener:
            packets.send(reply, [listener.fileno()])
    except OSError as error:
        runner.answer(reply, {"error": f"{error.strerror} ({request['host']})"})


_RUNNERS: dict[str, Callable[[Place, dict[str, Any], socket.socket, list[int]], None]] = {
    "exec": runner.run,
    "session": shell_session.run,
    "guest": _be_guest,
    "listen": _listen,
}


def run(control: socket.socket, request: dict[str, Any]) -> None:
    """Be the keeper until the client closes `control`, the lease ends, or the place cannot be made."""
    become_subreaper()
    tree = Tree()
    try:
        place = _make_place(request)
    except OSError as error:
        runner.answer(control, {"error": f"{error.strerror} ({error.filename or 'user and mount namespace'})"})
        return
    runner.answer(control, {"open": True})
    _serve(control, place, request["lease_s"], tree)
    tree.end_all()


def _make_place(request: dict[str, Any]) -> Place:
    plan = request["root"]
    if plan is None:
        return Place(None, request["workdir"])
    if "layer" in plan:  # its processes stay outside of it: they are a runtime's
        root.build_layer(request["directory"], plan)
        return Place(None, request["workdir"])
    limited = plan["disk_bytes"] is not None or plan["inodes"] is not None
    return Place(root.build(request["directory"], plan), request["workdir"], limited=limited)


def _serve(control: socket.socket, place: Place, lease_s: float, tree: Tree) -> None:
    expires_s = time.monotonic() + lease_s
    woken = children_wake()
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(woken, select.POLLIN)
    while (left_s := expires_s - time.monotonic()) > 0:
        for descriptor, _ in poll.poll(min(left_s, 1e6) * 1000):
            if descriptor == woken:
                os.read(woken, 512)
                reap()
                let_none_stand_still(tree.children(os.getpid()))
                continue
            packet = packets.receive(control)
            if packet is None:
                return
            order, descriptors = packet
            if "renew_s" in order:
                expires_s = time.monotonic() + order["renew_s"]
            elif "alive" in order:
                _say_so(descriptors)
            else:
                _start(place, control, descriptors)


def _say_so(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        with socket.socket(fileno=descriptor) as asked:
            runner.answer(asked, {"alive": True})


def _start(place: Place, control: socket.socket, descriptors: list[int]) -> None:
    """Fork a runner for one request. The keeper keeps none of its descriptors."""
    try:
        pid = os.fork()
    except OSError:
        pid = -1  # the client sees its reply socket close: the machinery's failure, not the action's
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            children_wake_nobody()
            control.close()
            body, answers, *streams = descriptors
            request = packets.read_body(body)
            reply = socket.socket(fileno=answers)
            _RUNNERS.get(request["op"], file_work.run)(place, request, reply, streams)
            code = 0
        os._exit(code)
    for descriptor in descriptors:
        os.close(descriptor)
