"""Jobs in flight, and the slots that they hold.

A job in flight waits for a slot, holds one while its handler runs, then waits until its outcome is written. The rate
of the queue decides how many jobs may wait (`claiming/prefetch.py`): none if its jobs are slow.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from awa_py.worker.batches import Batch
from awa_py.worker.claimed_job import ClaimedJob

logger = logging.getLogger("awa.worker")

Call: TypeAlias = ClaimedJob | Batch  # one call of a handler: it holds one slot


class QueueSlots:
    """The jobs in flight of one queue: collected for a batch, waiting for a slot, running, or being written."""

    __slots__ = (
        "batch_size",
        "capacity",
        "collecting",
        "finished",
        "held",
        "in_flight",
        "unwritten",
        "waiting",
        "waiting_jobs",
    )

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.in_flight = 0  # jobs: as many as run from the database's point of view
        self.held = 0  # slots
        self.collecting = 0
        self.waiting: deque[Call] = deque()
        self.waiting_jobs = 0
        self.unwritten = 0
        self.finished = 0  # jobs whose handlers ended, since the start
        self.batch_size = 0  # the size of a batch, if the last claim brought only jobs of batch handlers

    @property
    def is_idle(self) -> bool:
        return not (self.held or self.waiting_jobs or self.unwritten > 0)

    def can_start(self) -> bool:
        """Whether a call waits and the queue has a free slot."""
        return bool(self.waiting) and self.held < self.capacity

    def next_call(self) -> Call:
        """Remove and return the first waiting call."""
        call = self.waiting.popleft()
        self.waiting_jobs -= call.size
        return call

    def count_finished(self, jobs: int) -> None:
        """Count jobs that ran and whose outcomes are to be written."""
        self.finished += jobs
        self.unwritten += jobs


class InFlightJobs:
    """All jobs in flight of a worker."""

    def __init__(self, queues: Mapping[str, int], concurrency: int) -> None:
        self._concurrency = concurrency
        self._slot_free_callbacks: list[Callable[[], None]] = []
        self._jobs: dict[int, ClaimedJob] = {}
        self._slots = {queue: QueueSlots(capacity) for queue, capacity in queues.items()}
        self._turns = deque(self._slots.values())
        self._held = 0
        self.lease_s = math.inf  # how long a handler may rely on a lease after its renewal; set by the heartbeat
        self.abandoned = 0  # threads that cannot be stopped

    def on_slot_free(self, callback: Callable[[], None]) -> None:
        """Call the function whenever a slot has become free, after those that were registered before it."""
        self._slot_free_callbacks.append(callback)

    def _notify_slot_free(self) -> None:
        for callback in self._slot_free_callbacks:
            callback()

    def slots(self, queue: str) -> QueueSlots:
        return self._slots[queue]

    def free_slots(self, queue: str) -> int:
        """Return the number of free slots that jobs of the queue may have."""
        slots = self._slots[queue]
        free = max(0, min(slots.capacity - slots.held, self._concurrency - self._held))
        if not free and not slots.waiting and slots.held < slots.capacity and self.others_can_start(slots):
            return 1  # prefetched jobs of other queues would take every slot: let one job wait in line with them
        return free

    def add(self, queue: str, jobs: Sequence[ClaimedJob]) -> list[ClaimedJob]:
        """Add claimed jobs. Return earlier attempts of the same jobs that are still in flight."""
        self._slots[queue].in_flight += len(jobs)
        added = {job.id: job for job in jobs}
        former = [self._jobs[job_id] for job_id in self._jobs.keys() & added.keys()]
        self._jobs.update(added)
        return former

    def add_waiting(self, queue: str, calls: Sequence[Call], jobs: int) -> None:
        """Let calls, with this number of jobs in all, wait for a slot."""
        slots = self._slots[queue]
        slots.waiting.extend(calls)
        slots.waiting_jobs += jobs

    @property
    def can_start(self) -> bool:
        """Whether a call waits that could have a slot."""
        return self._held < self._concurrency and any(map(QueueSlots.can_start, self._turns))

    def acquire_slot(self) -> QueueSlots | None:
        """Take a slot for a queue with waiting calls. Queues take turns. Return None if there is none."""
        if self._held >= self._concurrency:
            return None
        for _ in range(len(self._turns)):
            slots = self._turns[0]
            self._turns.rotate()
            if slots.can_start():
                slots.held += 1
                self._held += 1
                return slots
        return None

    def others_can_start(self, slots: QueueSlots) -> bool:
        """Whether calls of another queue wait that could have a slot."""
        return any(other is not slots and other.can_start() for other in self._turns)

    def release_slot(self, slots: QueueSlots) -> None:
        slots.held -= 1
        self._held -= 1

    def remove(self, jobs: Sequence[ClaimedJob], counts: Mapping[str, int]) -> None:
        """Remove jobs whose outcomes are durable, or no longer matter. `counts` has their number by queue."""
        for queue, count in counts.items():
            slots = self._slots[queue]
            slots.unwritten -= count
            slots.in_flight -= count
        in_flight = self._jobs
        for job in jobs:
            if in_flight.get(job.id) is job:  # otherwise the job was claimed again here
                del in_flight[job.id]
        self._notify_slot_free()

    def remove_waiting_since(self, moment: float) -> list[ClaimedJob]:
        """Remove and return the jobs that have been waiting for a slot since before this time."""
        removed: list[ClaimedJob] = []
        for slots in self._turns:
            while slots.waiting and slots.waiting[0].waiting_since < moment:
                removed += slots.next_call().open_jobs()
                slots.batch_size = 0  # calls are slow: claim the next batch when there is a slot for it
        return removed

    def remove_waiting(self, queue: str) -> list[ClaimedJob]:
        """Remove and return the jobs of a queue that wait for a slot."""
        slots = self._slots[queue]
        slots.batch_size = 0
        return [job for _ in range(len(slots.waiting)) for job in slots.next_call().open_jobs()]

    def count_unwritten(self, jobs: Sequence[ClaimedJob]) -> None:
        """Count jobs that did not run and are to be released."""
        for job in jobs:
            self._slots[job.queue].unwritten += 1

    def hold_slot_until(self, call: Call, thread: "asyncio.Future[Any]") -> None:
        """Hold one more slot until a thread that cannot be stopped has ended."""
        slots = self._slots[call.queue]
        slots.held += 1
        self._held += 1
        self.abandoned += 1

        def release(thread: "asyncio.Future[Any]") -> None:
            if not thread.cancelled() and thread.exception() is not None:
                kind = type(thread.exception()).__name__
                logger.debug("%s: the abandoned thread ended with %s", call, kind, extra=call.fields())
            self.release_slot(slots)
            self.abandoned -= 1
            self._notify_slot_free()

        thread.add_done_callback(release)

    def has_expired(self, call: Call) -> bool:
        """Whether another worker may have the job, or one of the batch, so that no handler may start. Thread-safe."""
        return time.monotonic() > call.renewed_at + self.lease_s

    def get(self, job_id: int) -> ClaimedJob | None:
        return self._jobs.get(job_id)

    def is_current(self, job: ClaimedJob) -> bool:
        """Return False if this worker has claimed the job again since.

        The earlier attempt has lost its lease, even if both have the same number: a crash of the server can undo the
        first claim.
        """
        return self._jobs.get(job.id) is job

    def __iter__(self) -> Iterator[ClaimedJob]:
        return iter(list(self._jobs.values()))

    def __len__(self) -> int:
        return len(self._jobs)
