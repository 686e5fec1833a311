"""The seccomp filter: every number by an interpreter, on both architectures; and for real, in a process."""

import errno
import platform
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from berkeley import ALLOW, ERRNO, KILL, Instruction, parse, run

NATIVE = Path(__file__).parents[2] / "native"
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
OTHERS = {"i386": 0x40000003, "arm": 0x40000028, **ARCHITECTURES}
X32 = 0x40000000

MUST_BE_REFUSED = """
    mount umount2 pivot_root fsopen fsconfig fsmount fspick move_mount open_tree mount_setattr setns
    bpf perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register keyctl add_key request_key
    kexec_load kexec_file_load init_module finit_module delete_module open_by_handle_at name_to_handle_at quotactl quotactl_fd
    swapon swapoff reboot settimeofday clock_settime syslog acct pidfd_getfd kcmp clone3 fanotify_init vhangup
    sethostname setdomainname io_setup memfd_secret process_madvise move_pages migrate_pages iopl ioperm modify_ldt
"""
MUST_BE_ALLOWED = """
    read write openat close execve exit_group mmap brk clone wait4 futex ptrace process_vm_readv process_vm_writev chroot fchown
    fchownat mknodat setuid setgid setgroups capset prctl seccomp kill tgkill rt_sigreturn restart_syscall socket connect bind
    renameat2 unlinkat statx getrandom epoll_pwait pidfd_open close_range rseq set_robust_list memfd_create copy_file_range
"""
HAVE_RULES = {"clone", "unshare", "personality", "ioctl", "socket", "socketpair", "prlimit64"}


def refused(number: int) -> int:
    return ERRNO | number


@pytest.fixture(scope="session")
def confined(tmp_path_factory: pytest.TempPathFactory, must_work: Callable[[str, str], None]) -> Callable[[str], list[str]]:
    """`confined(architecture)`: how tests/native/confined.c, built for it, is started."""
    built: dict[str, list[str]] = {}
    place = tmp_path_factory.mktemp("confined")

    def build(architecture: str) -> list[str]:
        if architecture not in built:
            ours = architecture == platform.machine()
            compiler = "gcc" if ours else f"{architecture}-linux-gnu-gcc"
            runner = [] if ours else [f"qemu-{architecture}-static"]
            for tool in (compiler, *runner):
                if shutil.which(tool) is None:
                    must_work("native", f"{tool} is not installed")
            program = place / architecture
            sources = [Path(__file__).parent / "confined.c", NATIVE / "common/confine.c", NATIVE / "common/seccomp.c"]
            options = ["-std=gnu11", "-Wall", "-Werror", "-D_GNU_SOURCE", f"-I{NATIVE}", "-static"]
            subprocess.run([compiler, *options, "-o", program, *sources], check=True, timeout=60)
            built[architecture] = [*runner, str(program)]
        return built[architecture]

    return build


def told(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@cache
def numbers(architecture: str) -> dict[str, int]:
    """Every system call the architecture's own headers know, by name."""
    compiler = "gcc" if architecture == platform.machine() else f"{architecture}-linux-gnu-gcc"
    text = subprocess.run(
        [compiler, "-E", "-dD", "-"], input="#include <asm/unistd.h>", capture_output=True, text=True, check=True, timeout=60
    ).stdout
    defined = dict(re.findall(r"^#define (__NR\w*) (\w+)$", text, re.MULTILINE))
    found: dict[str, int] = {}
    for name, word in defined.items():
        meant = defined.get(word, word)  # some are defined as another
        if meant.isdigit():
            found[name.removeprefix("__NR_")] = int(meant)
    return found


def listed(table: str, architecture: str) -> set[str]:
    """The names in one of the two lists of seccomp_calls.h."""
    text = (NATIVE / "common/seccomp_calls.h").read_text()
    body = re.sub(r"/\*.*?\*/", "", text.split(f"{table}[] = {{")[1].split("};")[0], flags=re.DOTALL)
    everywhere, _, only_x86 = body.partition("#if defined(__x86_64__)")
    names = everywhere + (only_x86 if architecture == "x86_64" else "")
    return set(re.findall(r"NR_(\w+)", names))


def known(architecture: str) -> dict[str, int]:
    own = dict(re.findall(r"NR_(\w+) = (\d+)", (NATIVE / "common/seccomp_calls.h").read_text()))
    return {**{name: int(number) for name, number in own.items()}, **numbers(architecture)}


@pytest.fixture(params=ARCHITECTURES)
def architecture(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def program(architecture: str, confined: Callable[[str], list[str]]) -> list[Instruction]:
    return parse(told([*confined(architecture), "filter"]))


def test_each_number_gets_what_the_lists_say_and_every_other_does_not_exist(
    architecture: str, program: list[Instruction]
) -> None:
    named = known(architecture)
    expected = {named[name]: ALLOW for name in listed("seccomp_allowed", architecture)}
    expected |= {named[name]: refused(errno.EPERM) for name in listed("seccomp_refused", architecture)}
    ruled = {named[name] for name in HAVE_RULES}
    assert not ruled & expected.keys()
    for number in [*range(1024), 1 << 16, X32 - 1, 0x7FFFFFFF, 0xFFFFFFFF]:
        if number not in ruled:
            answer = run(program, ARCHITECTURES[architecture], number)
            assert answer == expected.get(number, refused(errno.ENOSYS)), f"number {number}"


def test_the_dangerous_are_refused_and_the_ordinary_allowed(architecture: str, program: list[Instruction]) -> None:
    named = known(architecture)
    for name in (name for name in MUST_BE_REFUSED.split() if name in named):
        answer = run(program, ARCHITECTURES[architecture], named[name])
        assert answer in (refused(errno.EPERM), refused(errno.ENOSYS)), name
    for name in MUST_BE_ALLOWED.split():
        assert run(program, ARCHITECTURES[architecture], named[name], (2, 1, 0)) == ALLOW, name
    assert run(program, ARCHITECTURES[architecture], named["clone3"]) == refused(errno.ENOSYS)  # libc falls back to clone


def test_who_knows_the_key_may_clone3_and_the_rest_is_the_same(
    architecture: str, program: list[Instruction], confined: Callable[[str], list[str]]
) -> None:
    """It is said in the registers of arguments that clone3 does not have. Without one, nothing opens."""
    keyed, ours = parse(told([*confined(architecture), "keyed"])), ARCHITECTURES[architecture]
    clone3, key = numbers(architecture)["clone3"], (0, 0, 1, 2, 3, 0xFFFFFFFF)
    assert run(keyed, ours, clone3, key) == ALLOW
    assert run(program, ours, clone3, key) == refused(errno.ENOSYS)
    for wrong in range(2, 6):
        guess = tuple(word ^ 0x80000000 if place == wrong else word for place, word in enumerate(key))
        assert run(keyed, ours, clone3, guess) == refused(errno.ENOSYS)
    others = set(range(600)) - {clone3}
    assert all(run(keyed, ours, number, key) == run(program, ours, number, key) for number in others)


def test_no_other_architecture_and_no_x32(architecture: str, program: list[Instruction]) -> None:
    for other in set(OTHERS.values()) - {ARCHITECTURES[architecture]}:
        assert {run(program, other, number) for number in range(1024)} == {KILL}
    x32 = {run(program, ARCHITECTURES[architecture], X32 | number) for number in range(1024)}
    assert x32 == {refused(errno.ENOSYS)}


CASES = [
    ("clone", (17,), ALLOW),
    ("clone", (0x3D0F00,), ALLOW),  # a thread
    *(("clone", (17 | 1 << bit,), refused(errno.EPERM)) for bit in (17, 25, 26, 27, 28, 29, 30)),
    ("prlimit64", (0,), ALLOW),
    ("prlimit64", (2,), ALLOW),
    ("prlimit64", (1,), refused(errno.EPERM)),
    ("unshare", (0,), ALLOW),
    ("unshare", (0x400,), ALLOW),  # CLONE_FILES
    *(("unshare", (1 << bit,), refused(errno.EPERM)) for bit in (7, 17, 25, 26, 27, 28, 29, 30)),
    ("personality", (0xFFFFFFFF,), ALLOW),
    ("personality", (0,), ALLOW),
    ("personality", (0x40000,), ALLOW),
    ("personality", (0x0400000,), refused(errno.EPERM)),  # READ_IMPLIES_EXEC
    ("personality", (0x0100000,), refused(errno.EPERM)),  # MMAP_PAGE_ZERO
    ("ioctl", (0, 0x5413), ALLOW),
    ("ioctl", (0, 0x5412), refused(errno.EPERM)),
    ("ioctl", (0, 0x5412 | 1 << 32), refused(errno.EPERM)),  # the kernel does not look at the upper half, nor do we
    ("ioctl", (0, 0x541C), refused(errno.EPERM)),
    ("ioctl", (0, 0x5423), refused(errno.EPERM)),
    ("socket", (1, 5, 0), ALLOW),
    ("socket", (2, 1 | 0x80800, 6), ALLOW),
    ("socket", (10, 2, 17), ALLOW),
    ("socket", (2, 3, 1), ALLOW),
    ("socket", (2, 5, 0), refused(errno.ESOCKTNOSUPPORT)),
    ("socket", (2, 1, 132), refused(errno.EPROTONOSUPPORT)),
    ("socket", (2, 1, 262), refused(errno.EPROTONOSUPPORT)),
    ("socket", (16, 3, 0), ALLOW),
    ("socket", (16, 3, 9), refused(errno.EPROTONOSUPPORT)),
    *(("socket", (family, 3, 0), refused(errno.EAFNOSUPPORT)) for family in (15, 17, 29, 30, 31, 38, 40, 44, 45)),
    ("socketpair", (1, 1, 0), ALLOW),
    ("socketpair", (30, 1, 0), refused(errno.EAFNOSUPPORT)),
]


@pytest.mark.parametrize(("name", "arguments", "answer"), CASES)
def test_arguments_decide(
    name: str, arguments: tuple[int, ...], answer: int, architecture: str, program: list[Instruction]
) -> None:
    assert run(program, ARCHITECTURES[architecture], numbers(architecture)[name], arguments) == answer


def test_any_table_becomes_a_program_that_says_the_same(confined: Callable[[str], list[str]]) -> None:
    """Also one so long that conditional jumps do not reach."""
    meaning = {0: refused(errno.ENOSYS), 1: ALLOW, 2: refused(errno.EPERM)}
    ours = ARCHITECTURES[platform.machine()]
    seeded = random.Random(7)  # noqa: S311
    tables = [[number % 2 for number in range(512)], [1] * 512, [0] * 512, [1], []]
    tables += [[seeded.choice((0, 1, 2)) for _ in range(length)] for length in (1, 2, 3, 100, 512)]
    for table in tables:
        program = parse(told([*confined(platform.machine()), "compile", *map(str, table)]))
        answers = [run(program, ours, number) for number in range(600)]
        assert answers == [meaning[table[number] if number < len(table) else 0] for number in range(600)]
        assert run(program, ~ours & 0xFFFFFFFF, 1) == KILL


# ---- for real

PRELUDE = "import ctypes, os, sys; libc = ctypes.CDLL(None, use_errno=True)\n"


def inside(confined: Callable[[str], list[str]], script: str, *how: str) -> subprocess.CompletedProcess[str]:
    command = [*confined(platform.machine()), "run", *how, sys.executable, "-c", PRELUDE + script]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_the_kernel_answers_as_the_interpreter_does(confined: Callable[[str], list[str]]) -> None:
    """Every number that is refused whatever its arguments, called for real. Those allowed are not: they would do something."""
    machine = platform.machine()
    program = parse(told([*confined(machine), "filter"]))
    ruled = {known(machine)[name] for name in HAVE_RULES}
    expected = {number: run(program, ARCHITECTURES[machine], number) for number in range(600) if number not in ruled}
    refusals = {number: answer & 0xFFFF for number, answer in expected.items() if answer != ALLOW}
    script = f"for number in {sorted(refusals)}: print(number, libc.syscall(number, 0, 0, 0, 0, 0, 0), ctypes.get_errno())"
    done = inside(confined, script)
    assert done.stderr == ""
    answers = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert answers == [(number, -1, refusals[number]) for number in sorted(refusals)]


# Harmless for real: each makes a descriptor or reads something.
PROBES = {
    "userfaultfd": "libc.syscall({userfaultfd}, 1)",
    "unshare": "libc.unshare(0x10000000)",
    "keyctl": "libc.syscall({keyctl}, 0, -3, 0)",
    "perf_event_open": "libc.syscall({perf_event_open}, 0, 0, -1, -1, 0)",
    "io_uring_setup": "libc.syscall({io_uring_setup}, 1, (ctypes.c_uint32 * 30)())",
    "alg": "libc.socket(38, 5, 0)",
}


@pytest.mark.parametrize("probe", PROBES)
def test_the_filter_is_what_refuses(probe: str, confined: Callable[[str], list[str]]) -> None:
    """The same call without the filter gets further: it succeeds, or the kernel finds fault with its arguments instead."""
    call = PROBES[probe].format(**numbers(platform.machine()))
    script = f"answer = {call}; print(answer, ctypes.get_errno())"
    held, bare = inside(confined, script).stdout, inside(confined, script, "bare").stdout
    assert held.startswith("-1 ")
    assert held != bare


@pytest.mark.parametrize("how", [(), ("privileges",)])
def test_capabilities_and_no_new_privs(how: tuple[str, ...], confined: Callable[[str], list[str]]) -> None:
    done = inside(confined, "print(open('/proc/self/status').read())", *how)
    said = dict(line.split(":\t", 1) for line in done.stdout.splitlines() if ":\t" in line)
    kept = f"{0xA80425FB:016x}"  # what Docker gives by default
    assert (said["CapPrm"], said["CapEff"], said["CapBnd"]) == (kept, kept, kept)
    assert (said["CapInh"], said["CapAmb"]) == ("0" * 16, "0" * 16)
    assert said["Seccomp"] == "2"
    assert said["NoNewPrivs"] == ("0" if how else "1")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="int 0x80 and x32 are x86's")
def test_int_0x80_is_death_and_x32_does_not_exist(confined: Callable[[str], list[str]], tmp_path: Path) -> None:
    source = tmp_path / "old.c"
    source.write_text(
        """
        #include <stdio.h>
        #include <string.h>
        int main(int argc, char **argv)
        {
            long answer = argc > 1 ? 0x40000000L + 39 : 20; /* getpid */
            if (argc > 1)
                __asm__ volatile("syscall" : "+a"(answer) : : "rcx", "r11", "memory");
            else
                __asm__ volatile("int $0x80" : "+a"(answer) : : "memory");
            printf("%ld\\n", answer);
            return 0;
        }
        """
    )
    subprocess.run(["gcc", "-static", "-o", tmp_path / "old", source], check=True, timeout=60)
    start = [*confined("x86_64"), "run"]

    def outcome(*words: str) -> tuple[int, str]:
        done = subprocess.run([*start, *words], capture_output=True, text=True, check=False, timeout=60)
        return done.returncode, done.stdout

    program = str(tmp_path / "old")
    code, text = outcome("bare", program)
    assert (code, int(text) > 0) == (0, True)  # it can be done on this kernel
    assert outcome(program) == (-signal.SIGSYS, "")
    assert outcome(program, "x32") == (0, f"{-errno.ENOSYS}\n")
