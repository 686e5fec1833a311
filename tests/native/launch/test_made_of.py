"""What a sandbox of the launcher's is made of, for root, for a user with subordinate ids and for one without."""

import errno
import fcntl
import os
import re
import socket
import struct
from pathlib import Path

import pytest
from launched import (
    DEVICE,
    DISK_BYTES,
    ERRNO,
    HELLO,
    HOSTNAME,
    INODES,
    LISTEN,
    LOWER,
    MAKE_DIR,
    MESSAGE,
    PRIVILEGES,
    ROOTLESS,
    USERS,
    Box,
    Launch,
    Who,
    bind,
    number,
    text,
)

from reachable import reachable

FIRST, END, EACH = 0x40000000, 0x6FFF0000, 65536
F_OFD_SETLK = 37
DOCKERS_CAPABILITIES = 0xA80425FB
NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")


def test_hello_says_what_was_found(who: Who, launch: Launch) -> None:
    assert launch.hello.type == HELLO
    assert (launch.hello.number(USERS), launch.hello.number(ROOTLESS)) == (who.users, not who.is_root)
    assert (MESSAGE in launch.hello.fields) == (who.users == 1)


def test_every_namespace_is_its_own(who: Who, launch: Launch) -> None:
    seen = [{name: str(Path(f"/proc/self/ns/{name}").readlink()) for name in NAMESPACES}]
    for _ in range(2):
        box = launch.create(who.plain)
        seen.append(dict(zip(NAMESPACES, box.sh(f"cd /proc/self/ns; readlink {' '.join(NAMESPACES)}").split(), strict=True)))
    for name in NAMESPACES:
        assert len({each[name] for each in seen}) == 3, name


def test_files_of_the_image_are_roots(who: Who, launch: Launch) -> None:
    box = launch.create(who.plain)
    assert box.sh("stat -c '%u:%g' / /etc/passwd /private/key /dev /tmp").split() == ["0:0"] * 5
    assert box.sh("cat /private/key") == "its own"
    box.sh("echo more >> /private/key && rm /etc/group && mkdir /etc/group")
    assert (who.image / "private/key").read_text() == "its own"
    assert (who.image / "etc/group").is_file()


def test_other_users_where_there_are_any(who: Who, launch: Launch) -> None:
    box = launch.create(who.plain)
    become = "import os; os.setgroups([1000]); os.setgid(1000); os.setuid(1000); print(os.getresuid(), os.getgroups())"
    if who.users == 1:
        assert "invalid argument" in box.fails("touch /mine; chown 1000:1000 /mine").lower()
        return
    assert box.sh("touch /mine; chown 1000:1000 /mine; stat -c %u:%g /mine") == "1000:1000"
    assert box.sh(f"/usr/bin/python3 -c '{become}'") == "(1000, 1000, 1000) [1000]"
    assert box.sh("touch /last; chown 65535:65535 /last; stat -c %u:%g /last") == "65535:65535"


def test_programs_have_dockers_capabilities_and_no_more(who: Who, launch: Launch) -> None:
    shown = launch.create(who.plain).sh("cat /proc/self/status")
    held = {name: int(value, 16) for name, value in re.findall(r"Cap(\w+):\t(\w+)", shown)}
    assert held == {"Inh": 0, "Prm": DOCKERS_CAPABILITIES, "Eff": DOCKERS_CAPABILITIES, "Bnd": DOCKERS_CAPABILITIES, "Amb": 0}
    assert re.search(r"NoNewPrivs:\t1\n", shown)
    assert re.search(r"Seccomp:\t2\n", shown)


def test_privileges_may_be_gained_only_if_asked(who: Who, launch: Launch) -> None:
    box = launch.create(who.plain + number(PRIVILEGES, 1))
    assert box.sh("grep NoNewPrivs /proc/self/status").split() == ["NoNewPrivs:", "0"]


def test_nothing_of_the_kernels_is_open(who: Who, launch: Launch) -> None:
    box = launch.create(who.plain)
    for name in ("kcore", "keys", "timer_list", "latency_stats", "kpagecount", "kmsg", "interrupts"):
        assert box.sh(f"head -c 1 /proc/{name} 2>/dev/null | wc -c") == "0", name
    for path in ("sysrq-trigger", "sys/kernel/core_pattern", "sys/kernel/shmmax", "sys/vm/drop_caches", "keys"):
        box.fails(f"echo 1 > /proc/{path}")
    box.fails("mount -o remount,rw /proc/sys")
    box.fails("umount /proc/keys")
    assert box.sh("find /sys -maxdepth 3 -type f -perm -u+w -exec sh -c ': >> $0 && echo $0' {} \\; 2>/dev/null | head") == ""


def test_the_guest_cannot_be_looked_at(who: Who, launch: Launch) -> None:
    box = launch.create(who.plain)
    for name in ("mem", "environ", "maps", "fd/0", "ns/user", "root/etc/passwd", "cwd/etc/passwd", "exe"):
        assert "Permission denied" in box.fails(f"head -c 1 /proc/1/{name}"), name
    box.sh("kill -KILL 1; true")
    assert box.sh("echo here") == "here"


def test_the_network_is_a_loopback(who: Who, launch: Launch) -> None:
    box = launch.create(who.plain + text(HOSTNAME, "box"))
    assert box.sh("cat /proc/net/dev | tail -n +3 | cut -d: -f1").split() == ["lo"]
    assert box.sh("cat /proc/sys/kernel/hostname") == "box"
    talk = "import socket as s; l = s.create_server(('127.0.0.1', 0)); s.create_connection(l.getsockname(), 5); print('met')"
    assert box.sh(f'/usr/bin/python3 -c "{talk}"') == "met"


def test_a_listener_of_the_sandbox_is_ours(who: Who, launch: Launch) -> None:
    box = launch.create(who.plain + number(LISTEN, 3128))
    assert box.listener is not None
    box.listener.settimeout(60)
    call = "import socket as s; s.create_connection(('127.0.0.1', 3128), 5).sendall(b'hello')"
    box.sh(f'/usr/bin/python3 -c "{call}"')
    connection, _ = box.listener.accept()
    with connection:
        assert connection.recv(16) == b"hello"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", 3128), 5).close()


def test_devices(who: Who, launch: Launch) -> None:
    box = launch.create(who.plain)
    assert sorted(box.sh("ls /dev").split()) == sorted(
        ["fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom", "zero"]
    )
    assert box.sh("head -c 4 /dev/zero | wc -c; echo gone > /dev/null; head -c 8 /dev/urandom | wc -c").split() == ["4", "8"]
    assert "No space" in box.fails("head -c 1 /dev/zero > /dev/full")
    assert box.sh("/usr/bin/python3 -c 'import os; print(os.ttyname(os.openpty()[1]))'") == "/dev/pts/0"
    box.sh("echo x > /dev/shm/file && test -k /tmp && test -k /dev/shm")
    box.fails("touch /dev/new")
    box.fails("chmod 600 /dev/null")
    box.fails("mknod /tmp/disk b 254 0 && head -c 1 /tmp/disk")
    box.fails("mknod /tmp/null c 1 3 && echo > /tmp/null")


def test_a_device_of_the_host_if_asked(who: Who, launch: Launch) -> None:
    box = launch.create(who.plain + text(DEVICE, "/dev/fuse"))
    rdev = Path("/dev/fuse").stat().st_rdev
    assert box.sh("stat -c '%t:%T %F' /dev/fuse") == f"{os.major(rdev):x}:{os.minor(rdev):x} character special file"
    assert "fuse" not in launch.create(who.plain).sh("ls /dev").split()
    assert launch.refuse(who.plain + text(DEVICE, "/dev/not-there")).number(ERRNO) == errno.ENOENT


def test_nothing_of_the_host_is_mounted(who: Who, launch: Launch) -> None:
    points = launch.create(who.plain).sh("cut -d' ' -f5 /proc/self/mountinfo").split()
    own = {"/", "/usr", "/tmp", "/dev", "/dev/pts", "/dev/shm", "/proc", "/proc/sys", "/proc/keys", "/proc/interrupts", "/sys"}
    assert {point for point in points if not re.fullmatch(r"/dev/(null|zero|full|random|urandom|tty)", point)} <= own


def test_binds(who: Who, launch: Launch, tmp_path: Path) -> None:
    for name in ("shown", "shared"):
        (tmp_path / name).mkdir()
        os.chown(tmp_path / name, who.user or 0, who.user or 0)
    (tmp_path / "shown/file").write_text("text")
    reachable(tmp_path)
    shared = bind(tmp_path / "shared", "/deep/er/shared", read_only=False)
    box = launch.create(who.plain + bind(tmp_path / "shown", "/shown") + bind(tmp_path / "shown/file", "/etc/one") + shared)
    assert box.sh("cat /shown/file /etc/one") == "texttext"
    for script in ("touch /shown/new", "echo > /shown/file", "echo > /etc/one", "touch /usr/new", "mount -o remount,rw /usr"):
        box.fails(script)
    box.sh("echo hello > /deep/er/shared/from")
    assert (tmp_path / "shared/from").read_text() == "hello\n"
    assert (tmp_path / "shared/from").stat().st_uid == (who.user or 0)


def test_layers_and_directories(who: Who, launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "upper/etc").mkdir(parents=True)
    (tmp_path / "upper/etc/passwd").write_text("of the upper\n")
    reachable(tmp_path)
    for path in tmp_path.rglob("*"):
        path.chmod(0o755)
    for path in tmp_path.rglob("*"):
        os.chown(path, who.user or 0, who.user or 0)
    box = launch.create(text(LOWER, tmp_path / "upper") + who.plain + text(MAKE_DIR, "/deep/here"))
    assert box.sh("cat /etc/passwd; cd /deep/here && touch x && cat /private/key") == "of the upper\nits own"


def test_a_disk_that_is_full(who: Who, launch: Launch) -> None:
    box = launch.create(who.plain + number(DISK_BYTES, 1 << 20) + number(INODES, 100))
    assert "No space" in box.fails("head -c 2000000 /dev/zero > /tmp/file")
    assert int(box.sh("stat -c %s /tmp/file; rm /tmp/file").split()[0]) <= 1 << 20
    assert "No space" in box.fails("head -c 2000000 /dev/zero > /dev/shm/file")
    box.sh("rm /dev/shm/file")
    assert "No space" in box.fails("for i in $(seq 200); do : > /tmp/$i || exit 1; done")
    assert 90 <= int(box.sh("ls /tmp | wc -l")) <= 100


def test_only_its_own_descriptors(who: Who, launch: Launch) -> None:
    held = [launch.create(who.plain + number(LISTEN, 80)) for _ in range(3)]
    counts = {len(list(Path(f"/proc/{box.pid}/fd").iterdir())) for box in held}
    assert len(counts) == 1
    assert held[-1].sh("ls /proc/self/fd").split() == ["0", "1", "2", "3"]


def test_no_core_is_dumped(who: Who, launch: Launch) -> None:
    assert launch.create(who.plain).sh("ulimit -c; ulimit -Hc; umask").split() == ["0", "0", "0022"]


def test_the_clients_own_limits_are_not_the_sandboxs(who: Who) -> None:
    with who.launch("ulimit -S -f 10; ulimit -S -t 100; ulimit -S -v 1000000; ulimit -S -s 1000") as launch:
        seen = launch.create(who.plain).sh("ulimit -f; ulimit -t; ulimit -v; ulimit -s").split()
        assert seen == ["unlimited", "unlimited", "unlimited", "8192"]


def test_too_few_descriptors_for_a_guest_are_told(who: Who) -> None:
    with who.launch("ulimit -n 48") as launch:
        answer = launch.refuse(who.plain)
        assert (answer.number(ERRNO), answer.step) == (errno.EMFILE, "open what a guest needs: raise `ulimit -n` to 64")


# ---- root's ranges


def status(pid: int, name: str) -> list[str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split()[1:] for line in lines if line.startswith(f"{name}:"))


def first_host_id(box: Box) -> int:
    """Where the sandbox's root is on the host: what its PID 1 runs as."""
    return int(status(box.pid, "Uid")[0])


def test_ranges_are_disjoint_and_never_the_hosts_root(root: Who) -> None:
    with root.launch() as one, root.launch() as two:
        firsts = [first_host_id(launch.create(root.plain)) for launch in (one, two) for _ in range(4)]
    assert len(set(firsts)) == 8
    assert all(FIRST <= first < END and first % EACH == 0 for first in firsts)


def test_a_range_that_another_has_is_passed_over(root: Who) -> None:
    with root.launch() as launch, Path("/run/excise/ids").open("r+b") as file:
        taken = (first_host_id(launch.create(root.plain)) - FIRST) // EACH + 1
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, taken % ((END - FIRST) // EACH), 1, 0)
        fcntl.fcntl(file, F_OFD_SETLK, lock)
        assert first_host_id(launch.create(root.plain)) != FIRST + taken * EACH


def test_a_range_is_the_same_for_users_and_groups(root: Who) -> None:
    with root.launch() as launch:
        box = launch.create(root.plain)
        first = first_host_id(box)
        assert status(box.pid, "Gid") == [str(first)] * 4
        assert status(box.pid, "Uid") == [str(number) for number in (first, first, first + EACH - 1, first)]
        assert status(box.pid, "Groups") == []
        mapped = [[int(word) for word in line.split()] for line in Path(f"/proc/{box.pid}/uid_map").read_text().splitlines()]
        assert [line[1] - line[0] for line in mapped] == [first] * len(mapped)
        assert sum(line[2] for line in mapped) == EACH
        assert Path(f"/proc/{box.pid}/gid_map").read_text() == Path(f"/proc/{box.pid}/uid_map").read_text()


def test_a_file_system_that_cannot_be_idmapped_is_refused(root: Who, tmp_path: Path) -> None:
    with root.launch() as launch:
        answer = launch.refuse(root.plain + bind(Path("/proc"), "/other"))
        assert answer.number(ERRNO) == errno.EINVAL
        assert "cannot be idmapped" in answer.step
