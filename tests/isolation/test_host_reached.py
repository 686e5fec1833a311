"""The host's knobs, devices, files and sockets from inside."""

import os
import secrets
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from excise import Spec
from excise.action import Pty
from excise.sync import Sandbox

Attempt = Callable[..., str]

INSIDE = "/tmp/attempts"

REFUSED = ("EPERM", "EACCES", "EROFS", "ENOENT", "ENODEV", "ENXIO", "EIO")
KNOBS = [
    "/proc/sys/kernel/core_pattern",  # a program the host starts when one of ours crashes
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/sysrq",
    "/proc/sys/kernel/panic",
    "/proc/sys/kernel/randomize_va_space",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/fs/file-max",
    "/proc/sys/kernel/pid_max",
    "/proc/sys/net/core/somaxconn",
    "/proc/sys/kernel/shmmax",
    "/sys/kernel/mm/ksm/run",
    "/sys/kernel/uevent_helper",
]
WRITE_ONLY = ["/proc/sysrq-trigger", "/proc/sys/vm/drop_caches", "/sys/kernel/profiling", "/proc/sys/fs/binfmt_misc/register"]
READ_ONLY = ["/proc/kcore", "/proc/kmsg", "/proc/keys", "/proc/timer_list", "/proc/slabinfo"]
DEVICES = [
    "/dev/mem",
    "/dev/kmsg",
    "/dev/kvm",
    "/dev/fuse",
    "/dev/net/tun",
    "/dev/loop-control",
    "/dev/vda",
    "/dev/sda",
    "/dev/uhid",
]


@pytest.mark.parametrize("path", KNOBS)
def test_knobs_cannot_be_turned(path: str, attempt: Attempt, control: Attempt) -> None:
    assert attempt("write_back", path) in REFUSED
    if os.geteuid() == 0 and Path(path).exists():
        assert control("write_back", path) == "succeeded"


@pytest.mark.parametrize("path", WRITE_ONLY)
def test_triggers_cannot_be_pulled(path: str, attempt: Attempt, control: Attempt) -> None:
    assert attempt("open", path, "write") in REFUSED
    if os.geteuid() == 0 and Path(path).exists():
        assert control("open", path, "write") == "succeeded"  # opened only


@pytest.mark.parametrize("path", READ_ONLY)
def test_what_the_kernel_says_of_the_host_is_not_read(path: str, attempt: Attempt, control: Attempt) -> None:
    assert attempt("read", path) in (*REFUSED, "ENODATA", "EAGAIN")
    if os.geteuid() == 0 and Path(path).exists() and path not in ("/proc/kmsg", "/proc/keys"):
        assert control("read", path) == "succeeded"


@pytest.mark.parametrize("path", DEVICES)
def test_no_device_of_the_host_is_there(path: str, attempt: Attempt) -> None:
    assert attempt("open", path, "read") in REFUSED


def test_the_devices_that_are_there_are_harmless_and_cannot_be_added_to(box: Sandbox, attempt: Attempt) -> None:
    names = set(box.run("find /dev -maxdepth 1 \\( -type c -o -type b \\) -printf '%f\\n'").text.split())
    assert names <= {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"}
    assert attempt("mknod") == "EPERM"
    assert not box.run(["touch", "/dev/mine"]).ok


@pytest.mark.usefixtures("other_users")
def test_a_set_user_id_file_gives_nothing(box: Sandbox, runs_here: Callable[[str], None], program: Path) -> None:
    """no_new_privs, unless it was asked otherwise; then the file's owner is the sandbox's own root and no other."""
    script = "cp /usr/bin/id /tmp/id && chown 0 /tmp/id && chmod 4755 /tmp/id"
    assert box.run(script).ok
    assert box.run(["/tmp/id", "-u"], user="1000").text == "1000\n"
    runs_here("namespace?sudo=1")
    with Sandbox("namespace?sudo=1", Spec(image="host")) as loose:
        assert loose.run(script).ok
        assert loose.run(["/tmp/id", "-u"], user="1000").text == "0\n"
        loose.write(INSIDE, program.read_bytes(), mode=0o755)
        assert loose.run([INSIDE, "bind"]).stdout == b"EPERM\n"


def test_a_files_capabilities_give_nothing(box: Sandbox) -> None:
    """The bounding set: a file that carries CAP_SYS_ADMIN does not run, or runs without it."""
    script = (
        "import os, struct\n"
        "for name, bit in (('admin', 21), ('chown', 0)):\n"
        "    os.setxattr(f'/tmp/{name}', 'security.capability', struct.pack('<5I', 0x02000001, 1 << bit, 0, 0, 0))\n"
    )
    assert box.run("cp /usr/bin/cat /tmp/admin && cp /usr/bin/cat /tmp/chown").ok
    assert box.run(["python3", "-c", script]).ok
    assert box.run(["/tmp/chown", "/dev/null"]).ok  # one that may be given works
    assert box.run(["/tmp/admin", "/dev/null"]).exit_code == 126


def test_root_inside_is_not_root_outside(box: Sandbox, uid_outside: Callable[[Sandbox], int]) -> None:
    assert box.run(["id", "-u"]).text == "0\n"
    assert uid_outside(box) > 65535 or os.geteuid() != 0
    assert uid_outside(box) != 0


def test_the_hosts_files_are_not_behind_any_path(box: Sandbox, tmp_path: Path) -> None:
    """Also not by `..`, links, or /proc of processes that are not ours."""
    token = secrets.token_hex(8)
    (tmp_path / "secret").write_text(token)
    assert box.run(
        f"mkdir -p /tmp/links && cd /tmp/links && ln -sfn / root && ln -sfn /proc/1/root one && ln -sfn {tmp_path} direct"
    ).ok
    up = "/.." * 32
    for path in (
        f"{tmp_path}/secret",
        f"{up}{tmp_path}/secret",
        f"/tmp/links/root{up}{tmp_path}/secret",
        f"/tmp/links/one{tmp_path}/secret",
        "/tmp/links/direct/secret",
        f"/proc/1/root{tmp_path}/secret",
        f"/proc/self/root{up}{tmp_path}/secret",
        f"/proc/self/cwd{up}{tmp_path}/secret",
    ):
        with pytest.raises((FileNotFoundError, PermissionError)):
            box.read(path)
        assert not box.run(["cat", path]).ok
    assert (tmp_path / "secret").read_text() == token  # a host process reads it there


def test_the_hosts_loopback_and_abstract_sockets_are_out_of_reach(box: Sandbox) -> None:
    name = f"\0excise-{secrets.token_hex(8)}"
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(name)
        abstract.listen()
        port = listener.getsockname()[1]
        script = (
            "import socket\n"
            f"for family, address in ((socket.AF_INET, ('127.0.0.1', {port})), (socket.AF_UNIX, {name!r})):\n"
            "    try: socket.socket(family).connect(address); print('connected')\n"
            "    except OSError as error: print(error.errno)\n"
        )
        assert box.run(["python3", "-c", script]).text == "111\n111\n"
        # The same from the host does connect.
        with socket.create_connection(("127.0.0.1", port)), socket.socket(socket.AF_UNIX) as client:
            client.connect(name)


def test_there_is_loopback_and_no_other_interface(box: Sandbox) -> None:
    assert box.run("ls /sys/class/net 2>/dev/null || tail -n +3 /proc/net/dev | cut -d: -f1").text.split() == ["lo"]
    script = "import socket; socket.create_connection(('192.0.2.1', 80), 2)"
    seen = box.run(["python3", "-c", script])
    assert b"unreachable" in seen.stderr


def test_nothing_of_the_hosts_environment_or_processes_is_seen(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXCISE_PLANTED", "planted")
    assert "planted" not in box.run("env; cat /proc/[0-9]*/environ 2>/dev/null; cat /proc/[0-9]*/cmdline").text
    assert box.run("cat /proc/1/cmdline").text == "excise-launch\0"  # and not where it lies, which tells who we are
    visible = {int(name) for name in box.run("cd /proc && ls -d [0-9]*").text.split()}
    assert os.getpid() not in visible or max(visible) < 200
    assert len(visible) < 20


def test_typing_into_a_terminal_is_refused(box: Sandbox) -> None:
    """TIOCSTI, on a terminal of the action's own: with a user's shell on it, it would be his keyboard."""
    seen = box.run([INSIDE, "type", "x"], pty=Pty())
    assert b"EPERM" in seen.stdout


def test_typing_works_without_the_filter(program: Path, as_root: None) -> None:
    leader, follower = os.openpty()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.close(leader)
        os.dup2(follower, 0)
        os.dup2(follower, 1)
        os.close(os.open(os.ttyname(0), os.O_RDWR))  # now it is the controlling one
        os.execv(program, [str(program), "type", "x"])  # noqa: S606
    os.close(follower)
    assert os.waitpid(child, 0)[1] == 0
    os.close(leader)


def test_layers_of_the_image_cannot_be_written(box: Sandbox) -> None:
    for path in ("/usr/bin/id", "/usr/written"):
        assert not box.run(f"echo x >> {path}").ok
    assert not Path("/usr/written").exists()
    assert stat.S_ISREG(Path("/usr/bin/id").stat().st_mode)
