"""What every workload needs: a server, and somebody who watches."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from awa_py.background import cancel_and_wait

from ..progress import Progress
from .meter import REPORTED_S

BULK = 10_000  # jobs in a call


@dataclass(frozen=True, slots=True)
class Bench:
    """Where to measure, and who is told how far it has come."""

    url: str
    progress: Progress


async def all_of(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """All at once; the first error ends them all."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        await cancel_and_wait(*tasks)


def calls(total: int, size: int = BULK) -> list[range]:
    """The numbers of all jobs, in as many calls as it takes."""
    return [range(first, min(first + size, total)) for first in range(0, total, size)]


async def settle(warm_up: Callable[[int], Awaitable[object]], *, jobs: int, sessions: int = 1) -> None:
    """Warms everything up with so many jobs, and lets the sessions in use report their statistics.

    A session does so at the end of a transaction, a second after the last time: hence one more job for each session.
    """
    await warm_up(jobs)
    await asyncio.sleep(REPORTED_S)
    await warm_up(sessions)
