"""What all workloads share: the server to measure, the progress bar, and helpers."""

import asyncio
import base64
import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from awa_py.background import cancel_and_wait

from ..progress import Progress
from .cost_recorder import REPORT_INTERVAL_S

BATCH_SIZE = 10_000  # jobs per call of enqueue_many
BATCH_BYTES = 20_000_000  # of arguments in a call


@dataclass(frozen=True, slots=True)
class Bench:
    """The server to measure, and where to show the progress."""

    url: str
    progress: Progress


async def run_concurrently(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run all coroutines; the first error cancels the others."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        await cancel_and_wait(*tasks)


def batches(total: int, size: int = BATCH_SIZE) -> list[range]:
    """Split the numbers from 0 to `total` into ranges of at most `size`."""
    return [range(first, min(first + size, total)) for first in range(0, total, size)]


def batch_size(argument_bytes: int) -> int:
    """Return the number of jobs per call for arguments of this size."""
    return max(1, min(BATCH_SIZE, BATCH_BYTES // max(1, argument_bytes)))


def random_argument(characters: int) -> dict[str, str]:
    """Return the argument `text`, which cannot be compressed and is the same in each run; nothing if it is empty."""
    digests = (hashlib.sha256(str(number).encode()).digest() for number in range(characters // 32 + 1))
    return {"text": base64.b64encode(b"".join(digests)).decode()[:characters]} if characters else {}


async def warm_up_sessions(enqueue: Callable[[int], Awaitable[object]], *, jobs: int, sessions: int = 1) -> None:
    """Enqueue some jobs, and let the sessions in use report their statistics.

    A session reports at the end of a transaction, but at most once a second: hence one more job for each session.
    """
    await enqueue(jobs)
    await asyncio.sleep(REPORT_INTERVAL_S)
    await enqueue(sessions)
