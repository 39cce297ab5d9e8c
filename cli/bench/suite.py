"""All workloads, one after the other: `awa bench all`."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import typer

from awa_py.errors import AwaError, DatabaseUnavailable

from .drain import drain
from .enqueue import enqueue
from .latency import latency, steady
from .options import DEFAULT_JOBS, Mode
from .punctuality import punctuality
from .report import Report
from .retries import retries
from .workload import Bench

PRODUCERS = 32
QUICK_DIVISOR = 10
DRAINS: Sequence[dict[str, Any]] = (
    {},
    {"batch": True},
    {"discard": True},
    {"pinned": True},
    {"argument_bytes": 10_000},
    {"handler_ms": 5},
    {"sync": True},
    {"processes": 2},
    {"queues": 200},
    {"max_workers": 100},
)


async def run_all(bench: Bench, *, quick: bool) -> tuple[list[Report], int]:
    """Return the reports and the number of failed workloads. A failed workload does not stop the others."""
    reports, failures = [], 0
    for name, run in workloads(quick=quick).items():
        try:
            reports.append(await run(bench))
        except DatabaseUnavailable:
            raise
        except AwaError as error:
            failures += 1
            typer.echo(f"awa: {name}: {error}", err=True)
    return reports, failures


def workloads(*, quick: bool) -> dict[str, Callable[[Bench], Awaitable[Report]]]:
    divisor = QUICK_DIVISOR if quick else 1
    return {
        **{
            " ".join(["drain", *(f"--{name.replace('_', '-')}" for name in options)]): partial(
                drain, jobs=20_000 // divisor, **options
            )
            for options in DRAINS
        },
        **{
            f"enqueue --mode {mode}": partial(enqueue, mode=mode, jobs=jobs // divisor, producers=PRODUCERS)
            for mode, jobs in DEFAULT_JOBS.items()
        },
        "enqueue --unique": partial(enqueue, mode=Mode.ONE, jobs=DEFAULT_JOBS[Mode.ONE] // divisor, unique=True),
        "latency": partial(latency, jobs=300 // divisor),
        "steady": partial(steady, rate=500.0, seconds=10.0 / divisor),
        "punctuality": partial(punctuality, jobs=200 // divisor),
        "retries": partial(retries, jobs=5_000 // divisor),
    }
