"""File actions on paths that sandboxed code has prepared: nothing of the host is read or written, and nobody waits."""

import contextlib
import io
import resource
import subprocess
import tarfile
from pathlib import Path

import pytest

from excise.sync import Sandbox

MIB = 1 << 20
SAID = r"\w"  # any error of the system's will do


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize("path", ["/proc/kcore", "/proc/kmsg", "/proc/1/mem", "/proc/1/environ", "/proc/sysrq-trigger"])
def test_links_to_the_kernels_files(path: str, box: Sandbox) -> None:
    assert box.run(["ln", "-sfn", path, "/tmp/trick"]).ok
    with pytest.raises(OSError, match=SAID):
        box.read("/tmp/trick")
    with pytest.raises(OSError, match=SAID):
        box.write("/tmp/trick", b"b")


@pytest.mark.parametrize(
    "kind", ["mkfifo /tmp/odd", "ln -s /dev/zero /tmp/odd", "ln -s odd /tmp/odd", "ln -s /dev/tty /tmp/odd"]
)
def test_what_is_no_file_keeps_nobody_waiting(kind: str, box: Sandbox) -> None:
    assert box.run(f"rm -f /tmp/odd; {kind}").ok
    with pytest.raises(OSError, match=SAID):
        box.read("/tmp/odd")
    assert box.run(["echo", "there"]).text == "there\n"


def test_a_file_of_a_terabyte_costs_the_host_nothing(box: Sandbox) -> None:
    """It takes no room inside: only its length is large."""
    assert box.run("truncate -s 1T /tmp/huge && mkdir -p /tmp/tree && ln -f /tmp/huge /tmp/tree/huge").ok
    before = peak_bytes()
    with pytest.raises(OSError, match=SAID):
        box.read("/tmp/huge")
    assert peak_bytes() - before < 700 * MIB
    stream = box.download("/tmp/tree")
    taken = 0
    for chunk in stream:  # flow-controlled: who does not go on reading gets no more
        taken += len(chunk)
        if taken > 8 * MIB:
            break
    assert box.run(["rm", "-r", "/tmp/huge", "/tmp/tree"]).ok


def test_writes_through_links_stay_inside(box: Sandbox, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("as it was")
    for path in (str(victim), "/.." * 20 + str(victim), f"/proc/1/root{victim}", f"/proc/self/root{victim}"):
        assert box.run(["ln", "-sfn", path, "/tmp/out"]).ok
        try:
            box.write("/tmp/out", b"written")
        except OSError:
            continue
    assert victim.read_text() == "as it was"


def test_the_image_is_not_written_through_a_link(box: Sandbox) -> None:
    assert box.run(["ln", "-sfn", "/usr/bin", "/tmp/bin"]).ok
    with pytest.raises(OSError, match=SAID):
        box.write("/tmp/bin/planted-by-a-test", b"x")
    assert not Path("/usr/bin/planted-by-a-test").exists()


def hostile_tar(target: Path) -> bytes:
    """Members that climb, members behind links out, a device, and a link over what comes next."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:

        def add(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", data: bytes = b"planted") -> None:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, link
            member.size = len(data) if kind == tarfile.REGTYPE else 0
            tar.addfile(member, io.BytesIO(data) if member.size else None)

        add("ordinary", data=b"ordinary")
        add("/".join([".."] * 20) + f"{target}/climbed")
        add("out", tarfile.SYMTYPE, str(target))
        add("out/behind")
        add("hard", tarfile.LNKTYPE, "../../../etc/passwd")
    return buffer.getvalue()


def test_a_hostile_tar_in(box: Sandbox, tmp_path: Path) -> None:
    """Whatever becomes of it inside, the host's directory of that name stays empty, and the sandbox's own /etc as it was."""
    before = box.run(["cat", "/etc/passwd"]).text
    target = tmp_path / "target"
    target.mkdir()
    with contextlib.suppress(OSError):  # refusing it is fine as well
        box.upload("/tmp/in", [hostile_tar(target)])
    assert list(target.iterdir()) == []
    assert not box.run(f"test -e {target}/climbed || test -e {target}/behind").ok
    assert box.run(["cat", "/etc/passwd"]).text == before


def test_the_tar_is_hostile_to_one_who_trusts_it(tmp_path: Path) -> None:
    target, place = tmp_path / "target", tmp_path / "place"
    target.mkdir()
    place.mkdir()
    # All but the last, which would be a link to a file of this machine's.
    command = ["tar", "--extract", "--absolute-names", "--directory", str(place), "--exclude", "hard"]
    subprocess.run(command, input=hostile_tar(target), check=True, timeout=60)
    assert {path.name for path in target.iterdir()} == {"climbed", "behind"}


def test_a_hostile_tree_out(box: Sandbox, tmp_path: Path) -> None:
    """FIFOs, sockets, links in circles and odd names: the stream ends, and a careful reader finds nothing outside."""
    script = (
        "import os, socket\n"
        "os.makedirs('/tmp/tree/deep', exist_ok=True); os.chdir('/tmp/tree')\n"
        "os.mkfifo('fifo'); os.symlink('.', 'circle'); os.symlink('/etc/passwd', 'absolute'); os.symlink('../' * 30, 'up')\n"
        "socket.socket(socket.AF_UNIX).bind('socket')\n"
        "open(b'new\\nline', 'w').close(); open(b'\\xff\\xfe', 'w').close(); open('-rf', 'w').close()\n"
        "os.symlink('/dev/zero', 'zero'); open('deep/file', 'w').write('file')\n"
    )
    assert box.run(["python3", "-c", script]).ok
    data = b"".join(box.download("/tmp/tree"))
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        members = tar.getmembers()
    assert all(not Path(member.name).is_absolute() and ".." not in Path(member.name).parts for member in members)
    assert {"tree/deep/file", "tree/circle"} <= {member.name for member in members}
    assert not any(member.ischr() or member.isblk() for member in members)
