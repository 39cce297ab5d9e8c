"""Collects the jobs of batch handlers until they make a batch."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter

from awa_py.model.registry import Handler
from awa_py.store.claim import has_arguments
from awa_py.worker.batches import Batch
from awa_py.worker.claimed_job import ClaimedJob
from awa_py.worker.in_flight import InFlightJobs


class BatchCollector:
    """Collects jobs of one kind and queue until a batch is full or its first job has waited for the linger time."""

    def __init__(self, handler: Handler, dispatch: Callable[[Batch], None]) -> None:
        assert handler.batching is not None
        self._handler = handler
        self._size = handler.batching.size
        self._linger_s = handler.batching.linger_s
        self._dispatch = dispatch
        self._jobs: list[ClaimedJob] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, jobs: Sequence[ClaimedJob]) -> None:
        self._jobs.extend(jobs)
        while len(self._jobs) >= self._size:
            self._dispatch_batch()
        if self._jobs and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._linger_s, self._dispatch_batch)

    def take_all(self) -> list[ClaimedJob]:
        """Remove and return the jobs of the incomplete batch."""
        jobs, self._jobs = self._jobs, []
        return jobs

    def _dispatch_batch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._jobs:
            jobs, self._jobs = self._jobs[: self._size], self._jobs[self._size :]
            self._dispatch(Batch(self._handler, jobs))


class BatchCollectors:
    """The collectors of a worker: one for each queue and kind."""

    def __init__(self, in_flight: InFlightJobs, on_batch: Callable[[], None]) -> None:
        """Call `on_batch` when a batch has begun to wait for a slot."""
        self._in_flight = in_flight
        self._on_batch = on_batch
        self._collectors: dict[tuple[str, str], BatchCollector] = {}

    def collect(self, queue: str, jobs: Sequence[ClaimedJob]) -> list[ClaimedJob]:
        """Collect the jobs of batch handlers. Return the others."""
        single: list[ClaimedJob] = []
        largest = 0
        for handler, group in groupby(jobs, attrgetter("handler")):
            if handler is None or handler.batching is None:
                single += group
            else:
                largest = max(largest, handler.batching.size)
                batched: list[ClaimedJob] = []
                for job in group:  # a job whose arguments are missing fails alone
                    (batched if has_arguments(job.row) else single).append(job)
                self._in_flight.slots(queue).collecting += len(batched)
                self._collector(queue, handler).add(batched)
        # Room to fill a batch must not be filled with other jobs: they would wait for a slot while they are leased.
        self._in_flight.slots(queue).batch_size = 0 if single else largest
        return single

    def take_queue(self, queue: str) -> list[ClaimedJob]:
        """Remove and return the collected jobs of a queue."""
        jobs = [
            job
            for (collector_queue, _), collector in self._collectors.items()
            if collector_queue == queue
            for job in collector.take_all()
        ]
        self._in_flight.slots(queue).collecting -= len(jobs)
        return jobs

    def take_all(self) -> list[ClaimedJob]:
        """Remove and return all collected jobs."""
        return [job for queue in {queue for queue, _ in self._collectors} for job in self.take_queue(queue)]

    def _collector(self, queue: str, handler: Handler) -> BatchCollector:
        key = (queue, handler.kind)
        if key not in self._collectors:
            self._collectors[key] = BatchCollector(handler, self._dispatch)
        return self._collectors[key]

    def _dispatch(self, batch: Batch) -> None:
        self._in_flight.slots(batch.queue).collecting -= batch.size
        self._in_flight.add_waiting(batch.queue, [batch], batch.size)
        self._on_batch()
