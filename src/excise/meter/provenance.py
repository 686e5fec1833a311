"""What the numbers depend on besides the substrate. Names no person, no host name and no path."""

import hashlib
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from excise.meter.records import Declared, Provenance
from excise.substrate import Capabilities

_UNKNOWN = "unknown"
_GIT_S = 10.0
_CGROUPS = Path("/sys/fs/cgroup")


def provenance(directory: Path, capabilities: Mapping[str, Capabilities], image_digest: str | None = None) -> Provenance:
    """This host now, and what is measured on it. `directory` is where results go: its filesystem is the one named."""
    cpu = _first(r"^model name\s*:\s*(.+)$", _text("/proc/cpuinfo")) or platform.processor() or _UNKNOWN
    kernel = os.uname()
    return Provenance(
        host=_host_hash(cpu),
        cpu=cpu,
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=int(_first(r"^MemTotal:\s*(\d+) kB", _text("/proc/meminfo")) or 0) * 1024,
        kernel=f"{kernel.sysname} {kernel.release}",
        machine=kernel.machine,
        cgroup=_cgroup_mode(),
        filesystem=filesystem(directory, _text("/proc/self/mountinfo")),
        mitigations=_mitigations(),
        distribution=_first(r'^PRETTY_NAME="?([^"\n]+)', _text("/etc/os-release")) or _UNKNOWN,
        excise=version("excise"),
        code=_code(),
        python=platform.python_version(),
        image_digest=image_digest,
        versions={address: one.versions for address, one in capabilities.items()},
        declared={address: declared(one) for address, one in capabilities.items()},
        commit=_commit(),
        privileged=os.geteuid() == 0,
        swap_bytes=int(_first(r"^SwapTotal:\s*(\d+) kB", _text("/proc/meminfo")) or 0) * 1024,
        governor=_text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").strip() or _UNKNOWN,
        virtual=_virtual(),
        clock=_text("/sys/devices/system/clocksource/clocksource0/current_clocksource").strip() or _UNKNOWN,
    )


def declared(capabilities: Capabilities) -> Declared:
    """What of it isolation is judged by."""
    return Declared(
        kernel=capabilities.kernel,
        isolates=tuple(sorted(capabilities.isolates)),
        network=tuple(sorted(capabilities.network)),
        snapshot=capabilities.snapshot,
    )


def filesystem(directory: Path, mountinfo: str) -> str:
    """The type of the filesystem that holds `directory`: of the mounts above it, the deepest and latest."""
    here = directory.resolve()
    best, kind = -1, _UNKNOWN
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        words = before.split()
        if len(words) < 5 or not after:
            continue
        point = Path(words[4].replace("\\040", " "))
        depth = len(point.parts)
        if depth >= best and here.is_relative_to(point):
            best, kind = depth, after.split()[0]
    return kind


def _host_hash(cpu: str) -> str:
    """The machine's id, hashed so that results tell hosts apart without naming one."""
    identity = _text("/etc/machine-id").strip() or os.uname().nodename
    return hashlib.sha256(f"excise {identity} {cpu}".encode()).hexdigest()[:12]


def _code() -> str:
    """The digest of this package's own source and of the programs built for it, which a version says little of."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    built = (file for file in package.glob("native/**/*") if file.is_file())
    for file in sorted({*package.rglob("*.py"), *built}):
        digest.update(f"{file.relative_to(package)}\0".encode() + file.read_bytes() + b"\0")
    return f"sha256:{digest.hexdigest()}"


def _commit() -> str:
    """Of the checkout this package lies in, if it lies in one."""
    package = Path(__file__).parents[1]

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", package, *words], capture_output=True, text=True, timeout=_GIT_S, check=True)
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", ".")  # an installed copy may lie below somebody else's repository
        return git("describe", "--always", "--dirty=+", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return _UNKNOWN


def _virtual() -> str:
    """The kind of machine this kernel runs in, by what its firmware says or the CPU's flag."""
    if not re.search(r"^flags\s*:.*\bhypervisor\b", _text("/proc/cpuinfo"), re.MULTILINE):
        return "no"
    return _text("/sys/class/dmi/id/product_name").strip() or "a hypervisor"


def _cgroup_mode() -> str:
    if (_CGROUPS / "cgroup.controllers").exists():
        return "v2"
    if (_CGROUPS / "unified" / "cgroup.controllers").exists():
        return "v1 with an empty v2 tree"
    return "v1" if (_CGROUPS / "cpu").exists() else _UNKNOWN


def _mitigations() -> dict[str, str]:
    folder = Path("/sys/devices/system/cpu/vulnerabilities")
    try:
        return {entry.name: entry.read_text().strip() for entry in sorted(folder.iterdir())}
    except OSError:
        return {}


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _first(pattern: str, text: str) -> str | None:
    found = re.search(pattern, text, re.MULTILINE)
    return found[1] if found else None
