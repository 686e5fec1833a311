"""A small Python process of ours beside the user's own, with a socket to it: it lives as long as that is open."""

import contextlib
import socket
import subprocess
import sys
from pathlib import Path

import excise
from excise.host import packets


def start(program: str) -> tuple[socket.socket, "subprocess.Popen[bytes]"]:
    """Run `program`, which finds the package's directory and its socket's descriptor in sys.argv; our end, and the process."""
    ours, theirs = packets.pair()
    package = str(Path(excise.__file__).parents[1])
    with theirs, contextlib.ExitStack() as undo:
        undo.callback(ours.close)
        # -I -S: neither the user's variables nor site packages; such a process needs the standard library alone.
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", program, package, str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd="/",
            env={},
            start_new_session=True,  # Ctrl-C is ours to handle, from its first instant on: it goes when we go
        )
        undo.pop_all()
    return ours, process
