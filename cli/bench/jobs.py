"""The jobs of the worker process of a benchmark: `awa worker awa_cli.bench.jobs:app -q bench`."""

import time

import awa_py as awa

from .temporary_schema import QUEUE

app = awa.App()


@app.job(queue=QUEUE)
async def nothing(n: int, text: str = "") -> None:
    """Do nothing, so that only the queue is measured."""


@app.job(queue=QUEUE)
async def timestamp(n: int) -> int:
    """Return the start time, on the clock that all processes of a machine share."""
    return time.monotonic_ns()
