"""What the jobs of a workload are like: the argument, the handler, and the limits of the worker."""

import asyncio
import base64
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

OnStart = Callable[[int], None]  # called first by the handler, with the number of the job

BATCH_JOBS = 10_000  # per call of enqueue_many
BATCH_BYTES = 20_000_000  # of arguments in a call or in a claim


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The shape of the jobs. Its defaults are jobs that do nothing, with a small argument, in one queue."""

    argument_bytes: int = 0
    handler_ms: int = 0
    sync: bool = False
    concurrency: int | None = None  # slots of a worker; None: what is best for jobs that do nothing
    queues: int = 1
    max_workers: int = 0  # jobs that may run at once in the cluster; 0: no limit
    unique: bool = False

    def arguments(self) -> Callable[[int], dict[str, Any]]:
        """Return a function that returns the arguments of a job."""
        if not self.argument_bytes:
            return lambda number: {"n": number}
        text = random_text(self.argument_bytes)
        return lambda number: {"n": number, "text": text}

    def queue_names(self) -> list[str]:
        return ["default", *(f"queue-{number}" for number in range(1, self.queues))]

    def batch_size(self, most: int = BATCH_JOBS) -> int:
        """Return the number of jobs in a call of enqueue_many, or in a claim that otherwise takes up to `most`.

        A claim of all jobs would not be measured: the time runs from the first handler's start.
        """
        return max(1, min(most, BATCH_BYTES // max(1, self.argument_bytes)))

    def handler(self, on_start: OnStart, number_of: Callable[..., int]) -> Callable[..., Any]:
        """Return the handler. `number_of` returns the number of the job from what the queue passes to its handlers."""
        wait_s = self.handler_ms / 1000

        def run(*args: Any, **kwargs: Any) -> None:
            on_start(number_of(*args, **kwargs))
            if wait_s:
                time.sleep(wait_s)

        async def run_async(*args: Any, **kwargs: Any) -> None:
            on_start(number_of(*args, **kwargs))
            if wait_s:
                await asyncio.sleep(wait_s)

        return run if self.sync else run_async


def random_text(characters: int) -> str:
    """Return a text that cannot be compressed: the same for each contender, also for awa bench and those on Node."""
    digests = (hashlib.sha256(str(number).encode()).digest() for number in range(characters // 32 + 1))
    return base64.b64encode(b"".join(digests)).decode()[:characters]
