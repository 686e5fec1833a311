"""Why no sandbox could be made: which rule of the machine said no, and the least change that allows it.

That something is denied was found by trying; the machine is asked only which of its rules did it.
"""

import errno
import os
from pathlib import Path

import msgspec

from excise.errors import CapacityError, CreateError, ExciseError, SpecError, SubstrateError
from excise.substrates.namespace import request
from excise.substrates.namespace.request import Answer

_SHORTAGE = frozenset({errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EAGAIN, errno.EUSERS})
_OWNERS = "map the owners of"
_OF_THE_SPEC = (
    (_OWNERS, "keep images (EXCISE_HOME) and what is mounted on ext4, xfs or btrfs; a tmpfs needs Linux 6.3"),
    ("show the device", "name a character device"),
    ("show /", "there the image must have a directory for a directory, a file for a file, and no link to nowhere"),
    ("make /", "choose another workdir or target, where a directory can be made"),
)
"""Steps that fail for what the spec asks for, by how the launcher calls them."""
_KERNEL = "the kernel must be 5.19 or newer for root, 5.12 for an ordinary user"
_OF_THE_OVERLAY = {
    errno.ENODEV: "load the file system: modprobe overlay",
    errno.EINVAL: _KERNEL,
}
_OF_ITS_PLACE = ("make /", "find /", "use /", "enter /", "open /run")
"""Steps of a launcher on its way to the directory in which it mounts."""
_MOUNTED_BELOW = "are mounted below it"
_CONTAINER_FLAGS = "--security-opt seccomp=unconfined --security-opt systempaths=unconfined"
_APPARMOR_FLAG = " --security-opt apparmor=unconfined"
_FIRST_SUBORDINATE = 100000
_SUBORDINATES = 65536
_POD = (
    "a pod: hostUsers false, and securityContext with seccompProfile type Unconfined and procMount Unmasked; "
    "or, where the runtime has no user namespaces, privileged true and runAsUser 1000"
)
_NOT_ROOT = (
    "this is a container, whose own files are an overlay, and root's sandboxes map the owners of what they show: run as "
    "another user (docker run --user 1000; a pod: securityContext runAsUser 1000), or use another image than host, with "
    "EXCISE_HOME on a volume of ext4, xfs or btrfs"
)


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The machine's own words on what it lets an ordinary program do."""

    is_root: bool = False
    most_user_namespaces: int | None = None
    """None: the kernel has none."""
    debian_denies: bool = False
    """Debian's older switch for user namespaces of ordinary users is off."""
    apparmor_denies: bool = False
    """Ubuntu's switch: an ordinary user's new user namespace has no rights in it."""
    apparmor_profile: str | None = None
    filtered: bool = False
    """A seccomp filter is on us: a container's."""
    proc_is_masked: bool = False
    """Something is mounted over a part of /proc: a container's."""
    root_is_overlay: bool = False
    """What lies at / is an overlay: a container's."""
    launcher: str = "excise-launch"


class Rule(msgspec.Struct, frozen=True):
    """What said no, and what would have to change."""

    reason: str
    remedy: str


def cannot_run(answer: Answer, seen: Facts) -> SubstrateError:
    """The launcher tried, and no sandbox can be made here at all."""
    if answer.text(request.TAG_STEP).startswith(_OF_ITS_PLACE):
        rule = Rule("its launcher needs a directory of its own", "make that one writable, or remove what has its name")
    else:
        rule = explain(answer.number(request.TAG_ERRNO), seen)
    return SubstrateError(f"namespace cannot make sandboxes here: {_words(answer)}: {rule.reason}; {rule.remedy}")


def not_started(error: OSError) -> SubstrateError:
    """Not even the launcher runs."""
    if error.errno in _SHORTAGE:
        return CapacityError(f"no process can be started for namespace sandboxes ({error.strerror}): raise `ulimit -u` or `-n`")
    return SubstrateError(f"{error.filename} cannot be run ({error.strerror}): install excise where programs may be executed")


def not_made(answer: Answer, seen: Facts) -> ExciseError:
    """This one could not be made."""
    number = answer.number(request.TAG_ERRNO)
    if (remedy := _remedy(answer.text(request.TAG_STEP), number, seen)) is not None:
        return SpecError(f"namespace could not make this sandbox: {_words(answer)}; {remedy}")
    if number in (errno.EPERM, errno.EACCES):
        rule = explain(number, seen)
        return CreateError(f"namespace could not make a sandbox: {_words(answer)}: {rule.reason}; {rule.remedy}")
    if (remedy := _OF_THE_OVERLAY.get(number)) and answer.text(request.TAG_STEP).startswith("mount the overlay"):
        return CreateError(f"namespace could not make a sandbox: {_words(answer)}; {remedy}")
    kind = CapacityError if number in _SHORTAGE else CreateError
    return kind(f"namespace could not make a sandbox: {_words(answer)}")


def _remedy(step: str, number: int, seen: Facts) -> str | None:
    """What would have to be another in the spec, if that is what could not be made."""
    if number in _SHORTAGE | {errno.EPERM, errno.EACCES}:
        return None
    if step.startswith(_OWNERS) and seen.is_root and seen.root_is_overlay:
        return _NOT_ROOT
    if _MOUNTED_BELOW in step:
        return "name a directory without any; instead of the image host, which borrows /usr, build one: `excise image build`"
    for beginning, remedy in _OF_THE_SPEC:
        if step.startswith(beginning):
            return remedy
    return None


def _words(answer: Answer) -> str:
    step, message, number = answer.text(request.TAG_STEP), answer.text(request.TAG_MESSAGE), answer.number(request.TAG_ERRNO)
    return ": ".join(part for part in (step, message or (os.strerror(number) if number else "")) if part)


def explain(number: int, seen: Facts) -> Rule:
    """The rule that is the likeliest to have said no, in the order in which they would have."""
    if seen.most_user_namespaces is None:
        return Rule("the kernel has no user namespaces", "it takes one built with CONFIG_USER_NS")
    if seen.most_user_namespaces == 0:
        return Rule("user.max_user_namespaces is 0", "sysctl -w user.max_user_namespaces=15000")
    if seen.filtered or seen.proc_is_masked:
        return _contained(seen)
    if seen.debian_denies and not seen.is_root:
        return Rule("kernel.unprivileged_userns_clone is 0", "sysctl -w kernel.unprivileged_userns_clone=1")
    if seen.apparmor_denies and not seen.is_root:
        profile = f"abi <abi/4.0>, profile excise {seen.launcher} flags=(unconfined) {{ userns, }}"
        return Rule(
            "AppArmor restricts user namespaces of ordinary users (kernel.apparmor_restrict_unprivileged_userns)",
            f"allow this one program by a profile in /etc/apparmor.d ({profile}), "
            "or all: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        )
    if number in (errno.ENOSPC, errno.EUSERS):
        return Rule("the limit of namespaces is reached", "close some, or raise user.max_*_namespaces")
    return Rule("no rule that Excise knows of", f"`dmesg` may name it; {_KERNEL}")


def _contained(seen: Facts) -> Rule:
    """In a container: its seccomp filter refuses clone and mount, and over a masked /proc no other can be mounted."""
    denied = [
        *(["its seccomp filter refuses new namespaces and mounts"] if seen.filtered else []),
        *(["its /proc is masked, so no fresh one can be mounted"] if seen.proc_is_masked else []),
    ]
    confined = seen.apparmor_profile not in (None, "unconfined")
    if confined:
        denied.append(f"its AppArmor profile {seen.apparmor_profile} refuses mounts")
    flags = _CONTAINER_FLAGS + (_APPARMOR_FLAG if confined else "")
    return Rule(f"this is a container, and {', '.join(denied)}", f"start it with: docker run {flags}; or {_POD}")


def more_uids(subuid: str | None = None) -> str:
    """What gives an ordinary user a range of uids that is nobody's yet: `subuid` is the text of /etc/subuid."""
    lines = (_read("/etc/subuid") or "") if subuid is None else subuid
    ranges = [line.split(":") for line in lines.splitlines()]
    taken = [int(parts[1]) + int(parts[2]) for parts in ranges if len(parts) == 3 and parts[1].isdigit() and parts[2].isdigit()]
    first = max((_FIRST_SUBORDINATE, *taken))
    span = f"{first}-{first + _SUBORDINATES - 1}"
    return f"apt-get install uidmap; usermod --add-subuids {span} --add-subgids {span} $USER"


def facts(launcher: str) -> Facts:
    """Read from the machine now; nothing is tried."""
    status = _read("/proc/self/status") or ""
    mounts = [line.split() for line in (_read("/proc/self/mountinfo") or "").splitlines()]
    most = _read("/proc/sys/user/max_user_namespaces") or "1"  # where it is hidden, it is not known to be the rule
    return Facts(
        is_root=os.geteuid() == 0,
        most_user_namespaces=int(most) if Path("/proc/self/ns/user").exists() else None,
        debian_denies=_read("/proc/sys/kernel/unprivileged_userns_clone") == "0",
        apparmor_denies=_read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1",
        apparmor_profile=_profile(),
        filtered="\nSeccomp:\t2" in status,
        proc_is_masked=any(mount[4].startswith("/proc/") for mount in mounts),
        root_is_overlay=any(mount[4] == "/" and mount[mount.index("-") + 1] == "overlay" for mount in mounts),
        launcher=launcher,
    )


def _profile() -> str | None:
    text = _read("/proc/self/attr/apparmor/current") or _read("/proc/self/attr/current")
    return text.rstrip("\0").partition(" ")[0] if text else None


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
