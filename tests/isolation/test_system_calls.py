"""System calls that lead out of a sandbox, or into the less trodden parts of the kernel. Each is seen to work outside."""

import os
import platform
import shutil
from collections.abc import Callable

import pytest

from excise.sync import Sandbox

Attempt = Callable[..., str]

MOUNTS = [
    ("mount", "tmpfs", "mode=700"),
    ("mount", "proc", ""),
    ("mount", "sysfs", ""),
    ("mount", "devpts", ""),
    ("mount", "mqueue", ""),
    ("bind",),
    ("remount", "/"),
    ("unmount", "/proc"),
    ("fsopen",),
    ("open_tree",),
    ("mount_setattr", "/"),
    ("pivot_root",),
    ("sethostname",),
]
FLAGS = {
    "time": 0x00000080,
    "mount": 0x00020000,
    "cgroup": 0x02000000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
}
NEED_ROOT = [
    ("mount", "cgroup", "memory"),  # whose release_agent the host would run
    ("mount", "binfmt_misc", ""),
    ("bpf",),
    ("perf_event_open",),
    ("open_by_handle_at", "/"),
    ("mknod",),
    ("syslog",),
    ("socket", "17", "3", "0"),  # packet: every frame on the wire
]
NEED_NOBODY = [
    ("add_key",),
    ("keyctl",),
    ("io_uring",),
    ("aio",),
    ("userfaultfd",),
    ("socket", "40", "1", "0"),
    ("pidfd_getfd", "own"),
]


@pytest.mark.parametrize("words", MOUNTS, ids="-".join)
def test_mounts(words: tuple[str, ...], attempt: Attempt, control: Attempt) -> None:
    assert attempt(*words) in ("EPERM", "ENOSYS")
    assert control(*words, where="fresh") == "succeeded"


# clone has no flag for time: its bit is the exit signal's.
WAYS = [(kind, how) for kind in FLAGS for how in ("unshare", "clone", "clone3") if (kind, how) != ("time", "clone")]


@pytest.mark.parametrize(("kind", "how"), WAYS)
def test_new_namespaces(kind: str, how: str, attempt: Attempt, control: Attempt) -> None:
    flags = hex(FLAGS[kind])
    assert attempt(how, flags) in ("EPERM", "ENOSYS")
    assert control(how, flags, where="fresh") == "succeeded"


@pytest.mark.parametrize("kind", ["cgroup", "ipc", "mnt", "net", "pid", "pid_for_children", "user", "uts"])
def test_namespaces_through_proc(kind: str, attempt: Attempt, control: Attempt) -> None:
    assert attempt("setns", f"/proc/1/ns/{kind}") in ("EACCES", "EPERM")
    assert attempt("setns", f"/proc/self/ns/{kind}") == "EPERM"
    if kind != "user":  # a process may not enter its own again
        assert control("setns", f"/proc/self/ns/{kind}", where="fresh") == "succeeded"


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize("words", NEED_ROOT, ids="-".join)
def test_what_the_hosts_root_can_do(words: tuple[str, ...], attempt: Attempt, control: Attempt) -> None:
    assert attempt(*words) in ("EPERM", "ENOSYS", "EAFNOSUPPORT")
    assert control(*words) == "succeeded"


@pytest.mark.parametrize("words", NEED_NOBODY, ids="-".join)
def test_what_anybody_can_do_outside(words: tuple[str, ...], attempt: Attempt, control: Attempt) -> None:
    assert attempt(*words) in ("EPERM", "ENOSYS", "EAFNOSUPPORT")
    assert control(*words) == "succeeded"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="these are x86's")
def test_ways_round_the_numbers(attempt: Attempt, control: Attempt) -> None:
    """Another architecture's numbers, and a tracer that changes a call after the filter has seen it."""
    assert attempt("int80") == "signal 31"
    assert control("int80") == "succeeded"
    assert attempt("change_call") == "EPERM"
    assert control("change_call") == "succeeded"


@pytest.mark.usefixtures("other_users")
def test_the_second_wall_stands_alone(attempt: Attempt) -> None:
    """An ordinary user inside is refused as root is: the filter does not ask who calls."""
    for words in (("unshare", "0x10000000"), ("add_key",), ("io_uring",)):
        assert attempt(*words, user="1000") in ("EPERM", "ENOSYS")


def test_what_a_debugger_needs_is_there(attempt: Attempt) -> None:
    """A wall that lets nothing through would pass every test above."""
    for words in (("ptrace", "own"), ("process_vm_writev", "own"), ("process_vm_readv", "own"), ("kill", "own", "9")):
        assert attempt(*words) == "succeeded"
    for part in ("mem", "fd", "root", "cwd", "environ", "maps"):
        assert attempt("look", "own", part) == "succeeded"


@pytest.mark.parametrize(
    ("tool", "script"),
    [
        ("strace", "strace -f -o /tmp/traced sh -c 'true; true' && grep -q 'exited with 0' /tmp/traced"),
        (
            "gdb",
            "gdb -batch -ex run /bin/true 2>&1 | tee /tmp/out | grep -q 'exited normally' && ! grep -q randomization /tmp/out",
        ),
        ("gcc", "echo 'int main(void) { return 0; }' > /tmp/a.c && gcc -o /tmp/a /tmp/a.c && /tmp/a"),
        ("git", "git init -q /tmp/repo && cd /tmp/repo && git -c user.name=n -c user.email=e commit -q --allow-empty -m m"),
        ("python3", "python3 -c 'import multiprocessing as m; m.Pool(2).map(abs, [-1])'"),
        ("node", 'node -e \'new (require("worker_threads").Worker)("", {eval: true})\''),
        ("useradd", "useradd -M -u 4321 somebody && chown somebody /tmp/attempts && test $(stat -c %u /tmp/attempts) = 4321"),
    ],
)
def test_ordinary_work_goes_on(tool: str, script: str, box: Sandbox) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed here, and so not in the image that is this machine's own programs")
    if tool == "useradd" and box.run(["chown", "1", "/tmp"]).exit_code != 0:
        pytest.skip("a sandbox has one user here")
    seen = box.run(script)
    assert seen.ok, seen.text


def test_leaving_a_chroot_leads_nowhere(attempt: Attempt, control: Attempt, tmp_path: object) -> None:
    """The classic double chroot ends at the sandbox's own root: the host's files are not behind it."""
    assert attempt("leave_chroot", str(tmp_path)) == "ENOENT"
    assert attempt("leave_chroot", "/proc/1") == "succeeded"  # it did leave the chroot it made itself
    if os.geteuid() == 0:
        assert control("leave_chroot", str(tmp_path)) == "succeeded"
