"""Jobs in flight, and the slots that they hold.

A job in flight waits for a slot, holds one while its handler runs, and is then written. How many may wait, and how many
may be on their way to the database, follows from the pace of the queue: none where jobs take their time.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from awa_py.worker.batches import Batch
from awa_py.worker.claimed_job import ClaimedJob

logger = logging.getLogger("awa.worker")

Call: TypeAlias = ClaimedJob | Batch  # of a handler: it holds one slot


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
        self.finished = 0  # handlers that ended, ever
        self.batch_size = 0  # the size of a batch, if the last claim brought only jobs of batch handlers

    @property
    def is_idle(self) -> bool:
        return not (self.held or self.waiting_jobs or self.unwritten > 0)

    def may_take(self) -> bool:
        """Whether a call waits that could have one of the queue's slots."""
        return bool(self.waiting) and self.held < self.capacity

    def take(self) -> Call:
        """Remove and return the next call."""
        call = self.waiting.popleft()
        self.waiting_jobs -= call.size
        return call

    def ended(self, jobs: int) -> None:
        """Count jobs that ran and whose outcomes are to be written."""
        self.finished += jobs
        self.unwritten += jobs


class InFlightJobs:
    """All jobs in flight of a worker."""

    def __init__(self, queues: Mapping[str, int], concurrency: int) -> None:
        self._concurrency = concurrency
        self._slot_free_callbacks: list[Callable[[], None]] = []
        self._flights: dict[int, ClaimedJob] = {}
        self._lanes = {queue: QueueSlots(capacity) for queue, capacity in queues.items()}
        self._turns = deque(self._lanes.values())
        self._held = 0
        self.abandoned = 0

    def on_slot_free(self, callback: Callable[[], None]) -> None:
        """Call the function whenever a slot has become free, after those that were registered before it."""
        self._slot_free_callbacks.append(callback)

    def _notify_slot_free(self) -> None:
        for callback in self._slot_free_callbacks:
            callback()

    def slots(self, queue: str) -> QueueSlots:
        return self._lanes[queue]

    def free_slots(self, queue: str) -> int:
        """Return the number of free slots that jobs of the queue may have."""
        slots = self._lanes[queue]
        free = max(0, min(slots.capacity - slots.held, self._concurrency - self._held))
        if not free and not slots.waiting and slots.held < slots.capacity and self.others_wait(slots):
            return 1  # prefetched jobs of other queues would take every slot: let one job wait in line with them
        return free

    def lane(self, queue: str) -> QueueSlots:
        return self._lanes[queue]

    def held(self, queue: str) -> int:
        """How many slots the queue's jobs hold."""
        return self._lanes[queue].held

    def add(self, queue: str, flights: Sequence[ClaimedJob]) -> list[ClaimedJob]:
        """Jobs of the queue that were claimed. Their former attempts, where some are still in flight."""
        self._lanes[queue].in_flight += len(flights)
        added = {flight.id: flight for flight in flights}
        former = [self._flights[job_id] for job_id in self._flights.keys() & added.keys()]
        self._flights.update(added)
        return former

    def line_up(self, queue: str, calls: Sequence[Call], jobs: int) -> None:
        """These calls, of so many jobs, wait for a slot."""
        lane = self._lanes[queue]
        lane.waiting.extend(calls)
        lane.waiting_jobs += jobs

    def gather(self, queue: str, jobs: int) -> None:
        """So many more (or less) wait for the rest of their batch."""
        self._lanes[queue].collecting += jobs

    def expect_batches(self, queue: str, size: int) -> None:
        """Leaves room for a batch of so many jobs to gather; 0 where the queue holds other jobs."""
        self._lanes[queue].batch_size = size

    @property
    def may_take(self) -> bool:
        """Whether a call waits that could have a slot."""
        return self._held < self._concurrency and any(map(QueueSlots.may_take, self._turns))

    def take_slot(self) -> QueueSlots | None:
        """A slot for the calls that wait there, where one can be had. Queues take turns."""
        if self._held >= self._concurrency:
            return None
        for _ in range(len(self._turns)):
            lane = self._turns[0]
            self._turns.rotate()
            if lane.may_take():
                lane.held += 1
                self._held += 1
                return lane
        return None

    def others_wait(self, lane: QueueSlots) -> bool:
        """Whether calls of another queue wait that could have a slot."""
        return any(other is not lane and other.may_take() for other in self._turns)

    def free_slot(self, lane: QueueSlots) -> None:
        lane.held -= 1
        self._held -= 1

    def remove(self, flights: Sequence[ClaimedJob], counts: Mapping[str, int]) -> None:
        """The outcomes are durable, or of no interest any more. `counts`: how many of each queue they are."""
        for queue, count in counts.items():
            lane = self._lanes[queue]
            lane.unwritten -= count
            lane.in_flight -= count
        in_flight = self._flights
        for flight in flights:
            if in_flight.get(flight.id) is flight:  # not where it was claimed anew meanwhile
                del in_flight[flight.id]
        self._notify_slot_free()

    def take_back(self, since: float) -> list[ClaimedJob]:
        """Takes those back that wait for a slot since before that moment."""
        taken: list[ClaimedJob] = []
        for lane in self._turns:
            while lane.waiting and lane.waiting[0].waiting_since < since:
                taken += lane.take().open_jobs()
                lane.batch_size = 0  # calls take long: the next batch is claimed when there is a slot for it
        return taken

    def take_back_from(self, queue: str) -> list[ClaimedJob]:
        """Takes those of one queue back that wait for a slot."""
        lane = self._lanes[queue]
        lane.batch_size = 0
        return [flight for _ in range(len(lane.waiting)) for flight in lane.take().open_jobs()]

    def give_back(self, flights: Sequence[ClaimedJob]) -> None:
        """These jobs have not run, and that is to be written."""
        for flight in flights:
            self._lanes[flight.queue].unwritten += 1

    def hold_until(self, call: Call, thread: "asyncio.Future[Any]") -> None:
        """Keeps one more slot until a thread that cannot be stopped ends by itself."""
        lane = self._lanes[call.queue]
        lane.held += 1
        self._held += 1
        self.abandoned += 1

        def ended(thread: "asyncio.Future[Any]") -> None:
            if not thread.cancelled() and thread.exception() is not None:
                kind = type(thread.exception()).__name__
                logger.debug("%s: its thread ended at last, with %s", call, kind, extra=call.fields())
            self.free_slot(lane)
            self.abandoned -= 1
            self._notify_slot_free()

        thread.add_done_callback(ended)

    def get(self, job_id: int) -> ClaimedJob | None:
        return self._flights.get(job_id)

    def __iter__(self) -> Iterator[ClaimedJob]:
        return iter(list(self._flights.values()))

    def __len__(self) -> int:
        return len(self._flights)
