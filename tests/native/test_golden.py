"""Golden frames: the bytes in golden/*.hex are what Python sends or reads, and what C makes of them is in golden/*.txt.

EXCISE_GOLDEN=write makes the files anew: for a new version of the wire, and for nothing else.
"""

import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from excise.action import End, Exec, FileInfo, Pty, Read, Shell, Write
from excise.guest import encode, wire

GOLDEN = Path(__file__).parent / "golden"
NATIVE = Path(__file__).parents[2] / "native"
_TERMINAL = wire.variable("TERM", "xterm")


def _run(action: Exec | Shell, flags: int = 0, *, interactive: bool = False) -> bytes:
    request = encode.command(action, interactive=interactive, terminal=_TERMINAL)
    return wire.request(request.type, 7, 3, request.fields, request.flags | flags)


def _file(action: Read | Write, flags: int = 0) -> bytes:
    request, _ = encode.file(action)
    return wire.request(request.type, 8, 3, request.fields, request.flags | flags)


# What the host sends, by the functions that make it.
SENT: dict[str, Callable[[], bytes]] = {
    "hello": lambda: wire.hello(3, [("PATH", "/bin"), ("GREETING", "grüße ☃")], "/home/me", "me:users"),
    "run": lambda: _run(Exec(("echo", "", "two words"), cwd="sub", env={"A": "b=c"}, user="65534", timeout_s=1.5, merge=True)),
    "run-shell": lambda: _run(Shell("echo $0"), wire.FLAG_CHAIN | wire.FLAG_STOP),
    "run-session": lambda: _run(Shell("cd /", session="main"), wire.FLAG_STARTED, interactive=True),
    "run-terminal": lambda: _run(Exec(("top",), pty=Pty(30, 100)), interactive=True),
    "read": lambda: _file(Read("/etc/passwd", 5, 6)),
    "write": lambda: _file(Write("a/b", b"data", mode=0o755, append=True)),
    "connect": lambda: wire.request(wire.FILE, 9, 3, encode.connect(8080).fields, encode.connect(8080).flags),
    "stdin": lambda: b"".join(wire.data_frames(7, 3, memoryview(b"typed\0"))) + wire.frame(wire.EOF, 7, 3),
    "orders": lambda: (
        wire.credit(7, 3, wire.STDERR, 131072)
        + wire.resize(7, 3, 40, 120)
        + wire.signal(7, 3, 15)
        + wire.frame(wire.KILL, 7, 3)
    ),
    "renew": lambda: wire.renew(10, 3, 1_700_000_000_123_456_789, bytes(range(16)), bytes(range(64, 128))),
}
# What a guest sends; the bytes were written down once and are what a guest in C has to say.
HEARD = {
    "greeting": wire.request(wire.HELLO, 0, 3, wire.number(wire.TAG_VERSION, 1) + wire.number(wire.TAG_ABILITIES, 5)),
    "answer": wire.frame(wire.STARTED, 7, 3)
    + wire.frame(wire.OUTPUT, 7, 3, b"out\n", wire.STDOUT)
    + wire.frame(wire.OUTPUT, 7, 3, b"\xff", wire.STDERR)
    + wire.frame(wire.CREDIT, 7, 3, (65536).to_bytes(4, "little")),
    "refusal": wire.request(wire.REFUSED, 7, 3, wire.field(wire.TAG_MESSAGE, b"no such user")),
}


def hex_of(name: str) -> bytes:
    return bytes.fromhex((GOLDEN / f"{name}.hex").read_text())


def _write(name: str, data: bytes) -> None:
    text = data.hex(" ", -4)
    lines = [text[at : at + 9 * 12] for at in range(0, len(text), 9 * 12)]
    (GOLDEN / f"{name}.hex").write_text("\n".join(lines) + "\n")


if os.environ.get("EXCISE_GOLDEN") == "write":
    for made, make in SENT.items():
        _write(made, make())
    for made, data in HEARD.items():
        _write(made, data)


@pytest.mark.parametrize("name", SENT)
def test_what_we_send_is_what_was_written_down(name: str) -> None:
    assert SENT[name]() == hex_of(name)


def frames(data: bytes) -> list[tuple[wire.Header, bytes]]:
    found: list[tuple[wire.Header, bytes]] = []
    while data:
        head = wire.header(data)
        found.append((head, data[16 : 16 + head.length]))
        data = data[16 + head.length :]
    return found


def test_what_a_guest_says_is_understood() -> None:
    ((head, payload),) = frames(hex_of("greeting"))
    assert (head.type, head.epoch, wire.greeting(payload)) == (wire.HELLO, 3, 5)
    started, out, err, credit = frames(hex_of("answer"))
    assert (started[0].type, out[0].flags, out[1], err[0].flags, err[1]) == (wire.STARTED, 1, b"out\n", 2, b"\xff")
    assert wire.granted(credit[1]) == 65536
    ((_, payload),) = frames(hex_of("refusal"))
    assert wire.refusal(payload) == wire.Refusal("no such user")
    ended, killed, last = frames(hex_of("ends"))
    seen = wire.ended(ended[1])
    assert (seen.end, seen.exit_code, seen.still_running, seen.session_replaced) == (End.EXITED, -3, True, True)
    assert (seen.guest_ns, seen.cpu_ns, seen.max_rss_bytes) == (1 << 40, 12, 4096)
    assert (killed[0].type, wire.ended(last[1]).error, wire.ended(last[1]).end) == (wire.KILLED, 28, End.OUT_OF_DISK)


def test_a_directorys_entries_are_understood() -> None:
    assert wire.entries(hex_of("entries")) == (
        FileInfo(name="file", kind="file", size_bytes=5, mode=0o100640, mtime_ns=-1, uid=1, gid=2, target=None),
        FileInfo(name="link", kind="link", size_bytes=4, mode=0o120777, mtime_ns=1 << 60, uid=0, gid=0, target="file"),
    )


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory, must_work: Callable[[str, str], None]) -> Path:
    if shutil.which("gcc") is None:
        must_work("native", "there is no gcc")
    built = tmp_path_factory.mktemp("golden") / "decode"
    sources = [str(GOLDEN / "decode.c"), str(NATIVE / "common/fields.c")]
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", f"-I{NATIVE}", "-o", str(built)]
    if platform.machine() in ("x86_64", "aarch64"):
        flags += ["-fsanitize=address,undefined"]
    subprocess.run(["gcc", *flags, *sources], check=True, timeout=60)
    return built


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.hex")), ids=lambda path: path.stem)
def test_the_c_side_reads_the_same(path: Path, decoder: Path) -> None:
    argv = [str(decoder), *(["entries"] if path.stem == "entries" else [])]
    seen = subprocess.run(argv, input=hex_of(path.stem), capture_output=True, check=False, timeout=20)
    assert (seen.returncode, seen.stderr) == (0, b"")
    told = path.with_suffix(".txt")
    if os.environ.get("EXCISE_GOLDEN") == "write":
        told.write_bytes(seen.stdout)
    assert seen.stdout == told.read_bytes()
