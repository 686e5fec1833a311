"""What in the file tree is no file: descriptors under /dev and /proc, the process table, the network's tables."""

import errno
import posixpath
import re
from pathlib import Path

from excise.substrates.fake.files import Computed, Device, Directory, File, Link, Node, refusal
from excise.substrates.fake.machine import Machine
from excise.substrates.fake.pipes import OpenFile, Stream, Terminal
from excise.substrates.fake.proc import Proc

_DESCRIPTOR = re.compile(r"/dev/fd/(\d+)|/proc/self/fd/(\d+)")
_STANDARD = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}
_PROCESS = re.compile(r"/proc/(self|\d+)(?:/(cmdline|ns/[a-z]+|status|uid_map))?")
_TCP_HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
_ROUTE_HEAD = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
_ROUTE = "eth0\t00000000\t010011AC\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"


def absolute(proc: Proc, path: str) -> str:
    return path if path.startswith("/") else posixpath.join(proc.cwd, path)


def open_path(proc: Proc, path: str, *, write: bool = False, truncate: bool = False, append: bool = False) -> Stream:
    """Open as open(2) would, for this process."""
    if not path:
        raise refusal(errno.ENOENT, path)
    path = absolute(proc, path)
    stream = _descriptor(proc, path)
    if stream is not None:
        return stream
    node = _computed(proc, path)
    if isinstance(node, Directory):
        raise refusal(errno.EISDIR, path)
    if not isinstance(node, Computed):
        with proc.noting_full():
            node = proc.machine.tree.open(path, proc.who, write=write, truncate=truncate, mode=0o666 & ~proc.umask)
    if isinstance(node, Device) and node.kind == "tty":
        return _terminal(proc)
    return OpenFile(proc.machine.tree, node, append=append)


def node_at(proc: Proc, path: str, *, follow: bool = True) -> Node:
    """What stat(2), or lstat(2), would describe."""
    path = absolute(proc, path)
    node = _computed(proc, path)
    if node is not None:
        return node
    if _descriptor(proc, path) is not None:
        return Device(0o666)
    return proc.machine.tree.get(path, proc.who, follow=follow)


def _descriptor(proc: Proc, path: str) -> Stream | None:
    found = _DESCRIPTOR.fullmatch(path)
    number = int(found[1] or found[2]) if found else _STANDARD.get(path)
    if number is None:
        return None
    if number not in proc.files:
        raise refusal(errno.ENOENT, path)
    return proc.files.get(number)


def _terminal(proc: Proc) -> Terminal:
    for number in proc.files:
        stream = proc.files.get(number)
        if isinstance(stream, Terminal):
            return stream
    raise refusal(errno.ENXIO)


def _computed(proc: Proc, path: str) -> Node | None:
    if not path.startswith("/proc"):
        return None
    path = posixpath.normpath(path)
    machine = proc.machine
    if path == "/proc":
        return Directory(0o555, entries={str(pid): Directory(0o555) for pid in (1, *machine.processes)})
    if path == "/proc/sys/kernel/random/uuid":
        return Computed(0o444, data=f"{machine.random.getrandbits(128):032x}\n".encode())
    if path == "/proc/sys/kernel/random/boot_id":
        return Computed(0o444, data=f"{machine.boot_id}\n".encode())
    if path == "/proc/net/tcp":
        return Computed(0o444, data=_listeners(machine))
    if path == "/proc/net/route":
        return Computed(0o444, data=(_ROUTE_HEAD + (_ROUTE if machine.reaches_out else "")).encode())
    found = _PROCESS.fullmatch(path)
    owner = None if found is None else proc if found[1] == "self" else _process(machine, int(found[1]))
    if found is None or owner is None:
        raise refusal(errno.ENOENT, path)
    match found[2]:
        case None:
            return Directory(0o555)
        case "cmdline":
            return Computed(0o444, data="".join(f"{word}\0" for word in owner.argv).encode("utf-8", "surrogateescape"))
        case "status":
            return Computed(0o444, data=f"Pid:\t{owner.pid}\nPPid:\t{owner.parent}\n".encode())
        case "uid_map":
            first = 0 if "sandboxes-share-no-users" in machine.broken else machine.namespace << 16
            return Computed(0o444, data=f"0 {first} 65536\n".encode())
        case namespace:
            kind = namespace.removeprefix("ns/")
            shared = f"sandboxes-share-no-{'users' if kind == 'user' else kind}" in machine.broken
            return Link(0o777, target=f"{kind}:[{0 if shared else machine.namespace}]")


def _process(machine: Machine, pid: int) -> Proc | None:
    for other in machine.neighbours:
        if pid in other.processes:
            return other.processes[pid]
    return machine.processes.get(pid)


def _listeners(machine: Machine) -> bytes:
    if "sandboxes-share-no-network" in machine.broken:
        return Path("/proc/net/tcp").read_bytes()
    rows = [f"{n:4d}: 0100007F:{port:04X} 00000000:0000 0A\n" for n, port in enumerate(sorted(machine.ports))]
    return (_TCP_HEAD + "".join(rows)).encode()


def is_directory(proc: Proc, path: str) -> bool:
    try:
        return isinstance(node_at(proc, path), Directory)
    except OSError:
        return False


def is_runnable(node: Node) -> bool:
    return isinstance(node, File) and bool(node.mode & 0o111)
