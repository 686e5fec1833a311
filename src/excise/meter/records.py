"""What a results directory holds: one Header (run.json) and one Trial a line (trials.jsonl).

A trial's spans are named after what they are: create, ready, setup, action, cleanup, and those below. docs/schema has all of
it as JSON Schema.
"""

from collections.abc import Mapping
from typing import Literal, get_args

import msgspec

from excise.spec import Kernel
from excise.trace import Span

SCHEMA = 4
READABLE = (2, 3, 4)
"""Schemas that still load: what 3 and 4 added has defaults that say what 2 did. Before 4, set-up is inside of `ready`."""

NULL = "null"
"""The span name of an interleaved null action; it belongs to the instrument, not to the rollout."""
IDENTITY = "identity"
"""The span name of asking a sandbox who it is, which is the instrument's too."""
THINK = "think"
"""The span name of a wait between actions, as a model's would be: neither tax nor work."""
RESET = "reset"
"""The span name of bringing a sandbox that goes on living back to its start state."""

STAGES = ("accepted", "scheduled", "pulled", "started", "ready")
"""The span names of a start's parts where a control plane orchestrates it; all but the last lie inside of `create`."""

JOURNEY = ("wire", "control")
"""The span names of a call's way to a server and back, and of what the server itself takes; the rest is the sandbox's."""

State = Literal["warm", "cold", "registry", "repo-warm", "deps-warm", "pooled"]
"""warm: image on this host, its pages cached. cold: the page cache is dropped before the trial. registry: the image is in
a registry on loopback alone, and create pulls it. repo-warm: what the workload's steps lead to was kept before the first trial.
The others: starts of claims."""
ShellMode = Literal["exec", "shell", "login", "session"]
"""exec: actions as the workload says. shell: commands by `sh -c`. login: by `bash -lc`. session: all in one live session."""
Reset = Literal["recreate", "git", "snapshot", "fork"]
"""How a rollout comes to its start state: a new sandbox, `git reset` and `git clean` in the old, its snapshot, a fork."""
AS_RECORDED = -1.0
"""A think time that stands for those of a recorded trajectory."""
STATES: tuple[State, ...] = get_args(State)
SHELLS: tuple[ShellMode, ...] = get_args(ShellMode)
RESETS: tuple[Reset, ...] = get_args(Reset)


class Cell(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One combination of factors: a row of the table. New factors are new fields with defaults."""

    address: str
    workload: str
    """A length is part of the name: `t0?actions=50`."""
    state: State = "warm"
    shell: ShellMode = "exec"
    reset: Reset = "recreate"
    concurrency: int = 1
    """How many rollouts begin at once, or arrive; each is a Trial with a lane of its own."""
    arrivals_per_s: float = 0.0
    """They begin at random times, so many a second, whether or not those before them have ended. 0: all at once."""
    think_s: float = 0.0
    """How long the harness waits between actions; AS_RECORDED: as long as whoever was recorded."""

    def factors(self) -> dict[str, str]:
        """What differs from the defaults, in words; empty for a plain cell."""
        plain = {"state": "warm", "shell": "exec", "reset": "recreate"}
        found = {name: getattr(self, name) for name, usual in plain.items() if getattr(self, name) != usual}
        if self.concurrency != 1:
            found["arrivals" if self.arrivals_per_s else "concurrency"] = str(self.concurrency)
        if self.arrivals_per_s:
            found["rate"] = f"{self.arrivals_per_s:g}/s"
        if self.think_s:
            found["think"] = "as recorded" if self.think_s == AS_RECORDED else f"{self.think_s:g} s"
        return found


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run does. Any run can be repeated from this record."""

    cells: tuple[Cell, ...]
    reference: str | None
    """Address of the cell that work is measured on; None if nothing here can be it."""
    image: str = "host"
    seed: int = 0
    blocks: int | None = None
    """Measured blocks; None: as many whole ones as the budget holds."""
    budget_s: float | None = None
    warmup_blocks: int = 1
    quiet_s: float = 0.02
    """How long the host is watched, with nothing of ours running, before each trial."""
    name: str = ""
    """Of the plan it was made from; empty if a command line alone said what to measure."""
    rerun_noisy: bool = False
    """Trials after a noisy window are run once more at the end of their block; both are kept."""


class Skipped(msgspec.Struct, frozen=True, omit_defaults=True):
    """An address, or one cell of it, that cannot run here, and what would change that."""

    address: str
    reason: str
    cell: Cell | None = None
    """None: nothing of the address."""


class Quiet(msgspec.Struct, frozen=True, kw_only=True):
    """The host just before a trial: pressure then is somebody else's doing."""

    window_ns: int
    pressure_ns: int | None = None
    """How much of the window some task waited for a CPU; None on a kernel without PSI."""
    pressure_avg10: float | None = None
    busy_s: float = 0.0
    """Busy CPU seconds of the whole host, in the kernel's ticks: only the sum over many windows says something."""
    steal_s: float = 0.0


class Trial(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One rollout of one cell. Span times count from the trial's start."""

    run: str
    block: int
    position: int
    """Place in the block's random order."""
    cell: Cell
    lane: int = 0
    """Which of the cell's concurrent rollouts."""
    warmup: bool = False
    noisy: bool = False
    """The quiet window before it was not quiet. It counts like any other."""
    rerun: bool = False
    """Run once more because the cell's trial in this block was noisy: added to that one, never in its place."""
    control: bool = False
    """Of a control block: run with every daemon stopped, beside the table and never in it."""
    intended_ns: int = 0
    """When it was to begin, from the beginning of its wave."""
    late_ns: int = 0
    """How much later it did: whoever kept it waiting, it waited."""
    wall_ns: int
    apart_ns: int = 0
    """What of it was the instrument's: null actions, asking who the sandbox is, reading the host's counters around them."""
    cpu_s: float
    """Busy CPU seconds of the whole host meanwhile, without what is apart: daemons and deletion too, and other people's.

    Of concurrent rollouts each has an equal share of what all of them took; so it is with `steal_s` and `written_bytes`.
    """
    steal_s: float = 0.0
    written_bytes: int | None = None
    """What the whole host wrote to files on disks meanwhile: pages made dirty, whenever they get to the device."""
    identity: str = ""
    """Of the sandbox: a hash of its boot, its own namespaces and when its first process began. Empty: it shares the host's."""
    quiet: Quiet
    failure: str | None = None
    spans: tuple[Span, ...]

    @property
    def ended_ns(self) -> int:
        """From the beginning of its wave; the last of its lanes ends the wave."""
        return self.intended_ns + self.late_ns + self.wall_ns


class Declared(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a substrate keeps sandboxes apart, as it declared when it was measured; the contract suite checks it."""

    kernel: Kernel
    isolates: tuple[str, ...] = ()
    network: tuple[str, ...] = ()
    snapshot: str | None = None


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """Where the numbers are from. It names no person and no path."""

    host: str
    """A hash that is the same for runs of one host."""
    cpu: str
    cores: int
    memory_bytes: int
    kernel: str
    machine: str
    cgroup: str
    filesystem: str
    mitigations: Mapping[str, str]
    distribution: str = "unknown"
    """Of the host; with the image `host` it is the sandbox's too."""
    excise: str
    code: str = "unknown"
    """Digest of the source that measured."""
    python: str
    image_digest: str | None = None
    """Of the image's content; of `host`, of the tree generated beside the host's own /usr, which `distribution` names."""
    versions: Mapping[str, Mapping[str, str]] = {}
    """By address: what the substrate said of itself."""
    declared: Mapping[str, Declared] = {}
    """By address: how far it keeps sandboxes apart. Runs before this field say nothing of it."""
    commit: str = "unknown"
    """Of the checkout that measured, with "+" if it was changed; `code` is exact where this is not."""
    privileged: bool | None = None
    """Whether root measured."""
    swap_bytes: int = 0
    governor: str = "unknown"
    """What sets the cores' clock."""
    virtual: str = "unknown"
    """The machine this host itself runs in, if it is one."""
    clock: str = "unknown"
    """The kernel's clock source."""


class Harness(msgspec.Struct, frozen=True, kw_only=True):
    """What the instrument itself costs, measured on a substrate that does nothing."""

    rollout_s: float
    action_s: float


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """run.json: written before the first trial."""

    schema: int = SCHEMA
    id: str
    started: str
    plan: Plan
    provenance: Provenance
    skipped: tuple[Skipped, ...] = ()
    harness: Harness | None = None
    witness: str | None = None
    """Whose answers everybody's must be."""
    answers: Mapping[str, tuple[str, ...]] = {}
    """By workload: digests of the witness's answers, one an action. Some are the same nowhere twice, and judge nobody."""
