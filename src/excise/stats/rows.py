"""A run's table: one row a cell, every number with its interval. `tabulate` fills it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from excise.errors import SpecError
from excise.meter.records import Cell
from excise.stats.estimate import Estimate
from excise.stats.jackknife import POSITIVE, SHARE, Blocks, Sums
from excise.stats.projection import MILLION, Costs, Scenario, line_of, worker_hours


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """A rollout of some length, from one row's trials."""

    steps: int
    composed: bool
    """True: put together from start + steps x mean action + cleanup; False: trials had this very length."""
    total_s: Estimate
    tax_rate: Estimate | None
    """Tax / total; None where no reference ran beside it."""

    def worker_hours(self, rollouts: float = MILLION) -> Estimate:
        """As if none failed: how a longer rollout fails was not measured."""
        return worker_hours(self.total_s, rollouts)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One cell. Terms are means in seconds, and add up to `total_s`; a field is None where nothing measured it."""

    cell: Cell
    reference: bool
    """Work is measured on this row; its slowdown is zero by definition."""
    attempted: int
    n: int
    """Trials that succeeded; only they are in the times."""
    paired: int
    """Of them, those whose block has a reference; only they are in the means."""
    failures: tuple[tuple[str, int], ...]
    """Reasons and how often, the commonest first."""
    success: Estimate | None
    actions: int = 0
    estimated: bool = False
    """No clock runs inside: dispatch is that of interleaved null actions."""
    start_s: Estimate | None = None
    setup_s: Estimate | None = None
    """None where the workload sets nothing up."""
    reset_s: Estimate | None = None
    """None where every rollout has a sandbox of its own."""
    dispatch_s: Estimate | None = None
    """Per action."""
    slowdown_s: Estimate | None = None
    """Per action."""
    work_s: Estimate | None = None
    """Per action."""
    cleanup_s: Estimate | None = None
    unattributed_s: Estimate | None = None
    think_s: Estimate | None = None
    """Waiting for a model, beside the total; None where nobody waited."""
    total_s: Estimate | None = None
    total_p50_s: Estimate | None = None
    total_p95_s: Estimate | None = None
    """None below 59 trials: there is no interval, so there is no number."""
    waited_p50_s: Estimate | None = None
    """From when a rollout was to begin to its end, waiting for its turn included; None where one runs at a time."""
    waited_p95_s: Estimate | None = None
    throughput_per_s: Estimate | None = None
    """Successful rollouts a second, from the wave's beginning to its last end; None where one runs at a time."""
    amortised_s: Estimate | None = None
    """Total over actions: start and cleanup are shared among them."""
    action_p50_s: Estimate | None = None
    """One action alone, in a sandbox that lives, from asking to its answer."""
    action_p95_s: Estimate | None = None
    tax_s: Estimate | None = None
    tax_rate: Estimate | None = None
    per_success_s: Estimate | None = None
    """Seconds of a worker that a rollout that succeeds costs, with the time of those that failed: T + p / (1 - p) x T_fail,
    think time included."""
    failed_s: float | None = None
    """How long a rollout that failed took, on average."""
    cpu_s: Estimate | None = None
    """Busy CPU seconds of the whole host per rollout."""
    written_bytes: Estimate | None = None
    """By the whole host, per rollout."""
    totals_s: Mapping[int, float] = field(default_factory=dict[int, float], repr=False)
    """Means by block, for comparisons within blocks."""
    blocks: Blocks | None = field(default=None, repr=False)

    @property
    def address(self) -> str:
        return self.cell.address

    @property
    def name(self) -> str:
        """The address, and in brackets each factor that is not as usual."""
        factors = self.cell.factors()
        return self.address + (f" ({', '.join(f'{name} {value}' for name, value in factors.items())})" if factors else "")

    @property
    def costs(self) -> Costs | None:
        """What a rollout costs as a line in its length; None without a successful trial."""
        if self.blocks is None:
            return None
        return Costs(line_of(self.blocks.sums), self.actions, self.blocks)

    def worker_hours(self, rollouts: float = MILLION) -> Estimate | None:
        """For so many rollouts that succeed, the failed ones among them paid for."""
        return None if self.per_success_s is None else worker_hours(self.per_success_s, rollouts)

    def rollout(self, steps: int) -> Rollout:
        """A rollout of `steps` actions like those measured; composed unless the trials were that long."""
        if steps < 1:
            raise SpecError(f"steps={steps}: a rollout has at least one action")
        if self.blocks is None:
            raise SpecError(f"{self.address} has no successful trial to compose a rollout from: {self._why()}")
        assert self.total_s is not None
        seconds, composed = Scenario(actions=steps).seconds, steps != self.actions

        def rate(sums: Sums) -> float:
            return 1 - steps * sums["work"] / sums["actions"] / seconds(line_of(sums))

        return Rollout(
            steps=steps,
            composed=composed,
            total_s=self.blocks.estimate(lambda sums: seconds(line_of(sums)), POSITIVE) if composed else self.total_s,
            tax_rate=self.blocks.estimate(rate, SHARE) if self.paired else None,
        )

    def _why(self) -> str:
        return self.failures[0][0] if self.failures else "no whole block was measured"
