"""The jobs of workers that run beside a workload: `awa worker awa_cli.bench.jobs:app -q bench`."""

import time

import awa_py as awa

from .scratch import QUEUE

app = awa.App()


@app.job(queue=QUEUE)
async def nothing(n: int) -> None:
    """Does nothing: what is left is the queue itself."""


@app.job(queue=QUEUE)
async def stamp(n: int) -> int:
    """When it began, on the clock that all processes of a machine share."""
    return time.monotonic_ns()
