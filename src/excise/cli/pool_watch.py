"""A pool under load, watched: samples for the record, a table for whoever looks on, metrics for whoever scrapes."""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import AsyncExitStack, contextmanager

import msgspec

from excise.api import connect
from excise.cli.pool_table import line, table
from excise.cli.sentences import say
from excise.clock import now_ns
from excise.errors import SpecError
from excise.loading.arrivals import Arrival
from excise.loading.drive import drive
from excise.loading.exposition import serving, text
from excise.loading.metrics import of_load, of_pool
from excise.loading.processor import Spent, spent
from excise.loading.records import Loaded, Sample
from excise.loading.tally import Tally
from excise.substrates.pool import Pool
from excise.substrates.pool.figures import Figures

TICK_S = 1.0
"""How often the pool is looked at."""
SPEAK_EVERY_S = 10.0
"""How often that is a line, where there is no terminal."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What `excise pool` was asked for."""

    address: str
    load: str
    for_s: float
    hold_s: float
    seed: int
    wait_s: float
    script: str | None
    expect: bool
    """Tell the pool what is coming, and when."""
    metrics: tuple[str, int] | None


class Watch:
    """One load: what it knows outlives the pool, so that an interrupted one can be told too."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.tally = Tally()
        self.samples: list[Sample] = []
        self.figures: Figures | None = None
        self.spent = Spent(own_s=0.0, children_s=0.0, host_s=0.0)
        self._began = spent()
        self._began_ns = 0
        self._over = False

    @property
    def title(self) -> str:
        at_s, for_s = self.samples[-1].at_s if self.samples else 0.0, self.asked.for_s
        of = f" of {for_s:.0f} s" if at_s < for_s and not self._over else ""
        return f"{self.asked.address} under {self.asked.load}: {at_s:.0f} s{of}"

    async def run(self, arrivals: Sequence[Arrival], show: Callable[["Watch"], None]) -> None:
        async with AsyncExitStack() as stack:
            pool = await stack.enter_async_context(connect(self.asked.address))
            if not isinstance(pool, Pool):
                raise SpecError(f"{self.asked.address} is no pool: write pool:{self.asked.address}")
            if self.asked.metrics is not None:
                host, port = self.asked.metrics
                url = await stack.enter_async_context(serving(lambda: self._metrics(pool), port, host))
                say(f"metrics are at {url}")
            self._began, self._began_ns = spent(), now_ns()
            if self.asked.expect:
                await _announce(pool, arrivals)
            looking = asyncio.create_task(self._look(pool, show))
            try:
                await drive(pool, arrivals, self.tally, wait_s=self.asked.wait_s, script=self.asked.script)
                self._over = True
            finally:
                looking.cancel()
                await asyncio.gather(looking, return_exceptions=True)
                self._sample(pool)  # before it is closed, which ends all that is idle

    async def _look(self, pool: Pool, show: Callable[["Watch"], None]) -> None:
        while True:
            self._sample(pool)
            show(self)
            await asyncio.sleep(TICK_S)  # Who looks on wants to see it at times, not at every change.

    def _sample(self, pool: Pool) -> None:
        figures, used = pool.figures(), spent() - self._began
        self.figures, self.spent = figures, used
        self.samples.append(
            Sample(
                at_s=(now_ns() - self._began_ns) / 1e9,
                arrived=self.tally.arrived,
                waiting=self.tally.waiting,
                holding=self.tally.holding,
                hits=self.tally.hits(),
                idle=figures.idle,
                idle_bytes=figures.idle_bytes,
                filling=figures.filling,
                spent=used,
            )
        )

    def _metrics(self, pool: Pool) -> str:
        return text([*of_pool(pool.figures()), *of_load(self.tally, spent() - self._began)])

    def record(self, *, ended_early: bool) -> Loaded:
        """All of it, for a file."""
        return Loaded(
            address=self.asked.address,
            load=self.asked.load,
            for_s=self.asked.for_s,
            hold_s=self.asked.hold_s,
            seed=self.asked.seed,
            ended_early=ended_early,
            took_s=self.samples[-1].at_s if self.samples else 0.0,
            claims=tuple(self.tally.claims),
            losses=dict(self.tally.losses),
            samples=tuple(self.samples),
            spent=self.spent,
            figures=msgspec.to_builtins(self.figures) if self.figures is not None else {},
        )


async def _announce(pool: Pool, arrivals: Sequence[Arrival]) -> None:
    """As a trainer can who knows its next groups: those of one spec that come at one time are a group."""
    groups = Counter((one.at_s, one.name, one.owner) for one in arrivals)
    specs = {(one.at_s, one.name, one.owner): one for one in arrivals}
    for key, count in groups.items():
        one = specs[key]
        labels = {**one.spec.labels, "owner": one.owner} if one.owner else one.spec.labels
        spec = msgspec.structs.replace(one.spec, labels=labels)
        await pool.expect([spec], group=count, in_s=[one.at_s])


@contextmanager
def shown() -> Generator[Callable[[Watch], None]]:
    """A live table on a terminal; elsewhere a line now and then."""
    if sys.stderr.isatty():
        from rich.console import Console  # noqa: PLC0415 - who reads a log does not pay for it
        from rich.live import Live  # noqa: PLC0415

        with Live(console=Console(file=sys.stderr), auto_refresh=False, transient=True) as live:

            def draw(watch: Watch) -> None:
                assert watch.figures is not None
                live.update(table(watch.title, watch.tally, watch.figures, watch.spent), refresh=True)

            yield draw
        return
    spoke_s = 0.0

    def speak(watch: Watch) -> None:
        nonlocal spoke_s
        assert watch.figures is not None
        at_s = watch.samples[-1].at_s
        if at_s - spoke_s >= SPEAK_EVERY_S:
            spoke_s = at_s
            say(line(at_s, watch.tally, watch.figures, watch.spent))

    yield speak
