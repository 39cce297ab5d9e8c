"""All workloads, one after the other: `awa bench all`."""

from collections.abc import Awaitable, Callable
from functools import partial

import typer

from awa_py.errors import AwaError, DatabaseUnavailable

from .drain import drain
from .enqueue import enqueue
from .latency import latency, steady
from .options import ENQUEUED
from .punctuality import punctuality
from .report import Report
from .retries import retries
from .workload import Bench

PRODUCERS = 32
QUICK = 10  # times less


async def run_all(bench: Bench, *, quick: bool) -> tuple[list[Report], int]:
    """What they found, and how many failed: one that does says so, and does not take the others' figures with it."""
    reports, failures = [], 0
    for name, run in program(quick=quick).items():
        try:
            reports.append(await run(bench))
        except DatabaseUnavailable:
            raise
        except AwaError as error:
            failures += 1
            typer.echo(f"awa: {name}: {error}", err=True)
    return reports, failures


def program(*, quick: bool) -> dict[str, Callable[[Bench], Awaitable[Report]]]:
    """What to run; `quick` is a tenth of it."""
    part = QUICK if quick else 1
    return {
        "drain": partial(drain, jobs=20_000 // part),
        "drain --batch": partial(drain, jobs=20_000 // part, batch=True),
        "drain --discard": partial(drain, jobs=20_000 // part, discard=True),
        "drain --pinned": partial(drain, jobs=20_000 // part, pinned=True),
        **{
            f"enqueue --mode {mode}": partial(enqueue, mode=mode, jobs=jobs // part, producers=PRODUCERS)
            for mode, jobs in ENQUEUED.items()
        },
        "latency": partial(latency, jobs=300 // part),
        "steady": partial(steady, rate=500.0, seconds=10.0 / part),
        "punctuality": partial(punctuality, jobs=200 // part),
        "retries": partial(retries, jobs=5_000 // part),
    }
