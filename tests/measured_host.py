"""A host on which everything was measured, made up: lines of known cost, claims of known length, and what each isolates."""

from dataclasses import replace

from excise.economics.measured import Claims, Measured
from excise.economics.weighed import Weighed, Weighing
from excise.meter.records import Declared
from made_pools import made_pool_header, made_pool_trials, warm_cells
from synthetic_run import cell, make_run

ALL = ("files", "ipc", "network", "processes")
KERNELS = {"namespace": "shared", "docker": "shared", "docker+guest": "shared", "gvisor": "intercepted", "vm": "own"}
LINES_MS = {
    # start, dispatch
    "chroot": (1.0, 0.5),
    "namespace": (5.0, 0.5),
    "docker": (250.0, 50.0),
    "docker+guest": (250.0, 1.0),
    "gvisor": (150.0, 80.0),
    "vm": (20_000.0, 30.0),
}


def measured_host(lines=LINES_MS, *, blocks=20, spread=0.05, extra=(), pools=True, seed=7, **more):
    """`extra`: further cells, with their lines."""
    cells = {cell(address): line for address, line in lines.items()} | dict(extra)
    run = make_run(cells, blocks, spread=spread, seed=seed)
    pooled = warm_cells() if pools else []
    claims = (Claims(made_pool_header(pooled, "warm"), tuple(made_pool_trials(pooled))),) if pools else ()
    known = Measured(
        runs=(run,),
        claims=claims,
        weighed={name: weighed(name, 1024) for name in ("namespace", "docker+guest")} if pools else {},
        declared={name: Declared(kernel=kernel, isolates=ALL) for name, kernel in KERNELS.items()},  # pyright: ignore[reportArgumentType]
    )
    return replace(known, **more)


def weighed(address, kib):
    return Weighed(address=address, runs=(Weighing(sandboxes=10, available_kib_each=kib),), slope_kib=kib)
