"""Two sandboxes, and what passes between them: nothing."""

import os
import secrets
from collections.abc import Callable, Generator

import pytest

from excise import Spec
from excise.sync import Sandbox, connect


@pytest.fixture(scope="module")
def pair(request: pytest.FixtureRequest, runs_here: Callable[[str], None]) -> Generator[tuple[Sandbox, Sandbox]]:
    """Of the module's ADDRESS, of one launcher if it names none."""
    address = getattr(request.module, "ADDRESS", "namespace")
    runs_here(address)
    with (
        connect(address) as substrate,
        Sandbox(substrate, Spec(image="host"), timeout_s=60) as first,
        Sandbox(substrate, Spec(image="host"), timeout_s=60) as second,
    ):
        yield first, second


def test_files(pair: tuple[Sandbox, Sandbox]) -> None:
    first, second = pair
    name = secrets.token_hex(8)
    for place in ("/tmp", "/dev/shm", "/etc", "/var/tmp"):
        assert first.run(f"mkdir -p {place} && echo x > {place}/{name}").ok
        assert first.run(f"test -e {place}/{name}").ok
        assert not second.run(f"test -e {place}/{name}").ok


def test_processes(pair: tuple[Sandbox, Sandbox]) -> None:
    """Not seen, and not to be signalled: the same number is another process, or none."""
    first, second = pair
    marker = f"86{secrets.randbelow(10**6):06}"
    assert first.run(f"sleep {marker} & :").ok
    look = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '"
    assert f"sleep {marker}" in first.run(look).text
    assert f"sleep {marker}" not in second.run(look).text
    second.run("kill -9 -1")
    assert f"sleep {marker}" in first.run(look).text
    first.run(f"pkill -f 'sleep {marker}' || kill -9 -1")


SHARED_MEMORY = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
key = int(sys.argv[2])
found = libc.shmget(key, 4096, 0o1666 if sys.argv[1] == "make" else 0)
print(found >= 0)
"""


def test_system_v_memory(pair: tuple[Sandbox, Sandbox]) -> None:
    first, second = pair
    key = str(secrets.randbelow(1 << 30))
    assert first.run(["python3", "-c", SHARED_MEMORY, "make", key]).text == "True\n"
    assert first.run(["python3", "-c", SHARED_MEMORY, "find", key]).text == "True\n"
    assert second.run(["python3", "-c", SHARED_MEMORY, "find", key]).text == "False\n"


CONNECT = """
import socket, sys
family, address = (socket.AF_UNIX, "\\0" + sys.argv[1]) if sys.argv[2] == "abstract" else (socket.AF_INET, ("127.0.0.1", 4711))
try: socket.socket(family).connect(address); print("connected")
except OSError as error: print(error.errno)
"""
LISTEN = """
import socket, sys
one = socket.socket(socket.AF_UNIX); one.bind("\\0" + sys.argv[1]); one.listen()
two = socket.socket(); two.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); two.bind(("0.0.0.0", 4711)); two.listen()
print("listening", flush=True)
sys.stdin.read()
"""


def test_sockets(pair: tuple[Sandbox, Sandbox]) -> None:
    first, second = pair
    name = secrets.token_hex(8)
    process = first.start(["python3", "-c", LISTEN, name])
    next(process)
    for kind in ("abstract", "port"):
        assert first.run(["python3", "-c", CONNECT, name, kind]).text == "connected\n"
        assert second.run(["python3", "-c", CONNECT, name, kind]).text == "111\n"
    process.signal(9)
    assert process.wait().signal == 9


def test_users(pair: tuple[Sandbox, Sandbox], uid_outside: Callable[[Sandbox], int]) -> None:
    """No two sandboxes of the host's root share a user: what one leaves anywhere is not the other's."""
    if os.geteuid() != 0:
        pytest.skip("an ordinary user's sandboxes have that user's ids, which are the same for all of them")
    first, second = (uid_outside(box) for box in pair)
    assert abs(first - second) >= 65536


def test_names_and_hosts(pair: tuple[Sandbox, Sandbox]) -> None:
    """Namespaces are their own: the kernel's numbers for them differ."""
    first, second = (
        box.run("for kind in cgroup ipc mnt net pid user uts; do readlink /proc/self/ns/$kind; done").text.split()
        for box in pair
    )
    assert len(first) == 7
    assert not set(first) & set(second)
