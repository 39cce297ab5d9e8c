"""Jobs in flight, and the slots that they hold.

A job in flight waits for a slot, holds one while its handler runs, and is then written. What waits or is being
written is the queue's backlog. How large the backlog may be follows from the pace of the queue: nothing where jobs
take their time, so that a slot is filled again only once the last outcome is durable.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from awa_py.worker.batches import Batch
from awa_py.worker.flight import Flight
from awa_py.worker.pace import Pace

logger = logging.getLogger("awa.worker")

Call: TypeAlias = Flight | Batch  # of a handler: it holds one slot


class Lane:
    """The jobs in flight of one queue."""

    __slots__ = ("backlog", "batch", "gathering", "held", "limit", "pace", "waiting")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0  # slots
        # Jobs in flight that are not running: they wait for a slot, or for being written. Below zero while a batch
        # runs of which some are written already.
        self.backlog = 0
        self.gathering = 0  # those of the backlog that wait for the rest of their batch
        self.batch = 0  # how many jobs a batch takes, where the last claim brought nothing but batch jobs
        self.waiting: deque[Call] = deque()
        self.pace = Pace()

    def room(self, free: int) -> int:
        """How many jobs may be claimed where so many slots are free: ahead by the pace, or to fill a batch.

        Jobs that gather take no slot from others: their batch may be long in coming.
        """
        ahead = self.pace.ahead() - max(0, self.backlog - self.gathering)
        return max(0, free + max(ahead, self.batch - max(0, self.backlog)))


class Flights:
    """All jobs in flight of a worker."""

    def __init__(self, queues: Mapping[str, int], concurrency: int, freed: Callable[[], None]) -> None:
        self._concurrency = concurrency
        self._freed = freed
        self._flights: dict[int, Flight] = {}
        self._lanes = {queue: Lane(limit) for queue, limit in queues.items()}
        self._turns = deque(self._lanes.values())
        self._held = 0
        self.abandoned = 0

    def room(self, queue: str) -> int:
        """How many more jobs of the queue may be claimed."""
        lane = self._lanes[queue]
        return lane.room(max(0, min(lane.limit - lane.held, self._concurrency - self._held)))

    def chunk(self, queue: str) -> int:
        """How much room makes a claim worth its while, as long as there is something to do meanwhile."""
        lane = self._lanes[queue]
        return lane.pace.chunk() if lane.held or lane.backlog > lane.gathering else 1

    def held(self, queue: str) -> int:
        """How many slots the queue's jobs hold."""
        return self._lanes[queue].held

    def add(self, queue: str, flights: Sequence[Flight]) -> None:
        """Jobs that were claimed."""
        before = len(self._flights)
        self._flights.update({flight.id: flight for flight in flights})
        # One that was here before under an older lease gives its place to the new one.
        self._lanes[queue].backlog += len(self._flights) - before

    def line_up(self, queue: str, calls: Sequence[Call]) -> None:
        """These wait for a slot."""
        self._lanes[queue].waiting.extend(calls)

    def gather(self, queue: str, number: int) -> None:
        """So many more (or less) wait for the rest of their batch."""
        self._lanes[queue].gathering += number

    def expect_batches(self, queue: str, size: int) -> None:
        """Leaves room for a batch of so many jobs to gather; 0 where the queue holds other jobs."""
        self._lanes[queue].batch = size

    def take(self) -> Call | None:
        """The next call that may be made, with its slot. Queues take turns."""
        if self._held >= self._concurrency:
            return None
        for _ in range(len(self._turns)):
            lane = self._turns[0]
            self._turns.rotate()
            if lane.waiting and lane.held < lane.limit:
                call = lane.waiting.popleft()
                lane.held += 1
                lane.backlog -= call.size
                self._held += 1
                return call
        return None

    @property
    def may_take(self) -> bool:
        """Whether a job waits that could have a slot."""
        if self._held >= self._concurrency:
            return False
        return any(lane.waiting and lane.held < lane.limit for lane in self._turns)

    def end(self, call: Call) -> None:
        """The handler has ended: the slot is free, the outcomes are still to be written."""
        lane = self._lanes[call.queue]
        lane.held -= 1
        lane.backlog += call.size
        lane.pace.ended += call.size
        self._held -= 1

    def remove(self, flights: Iterable[Flight]) -> None:
        """The outcomes are durable, or of no interest any more."""
        for flight in flights:
            if self._flights.get(flight.id) is flight:  # not where it was claimed anew meanwhile
                del self._flights[flight.id]
                self._lanes[flight.queue].backlog -= 1
        self._freed()

    def take_back(self, since: float) -> list[Flight]:
        """Takes those back that wait for a slot since before that moment."""
        taken: list[Flight] = []
        for lane in self._turns:
            while lane.waiting and lane.waiting[0].waits_since < since:
                taken += lane.waiting.popleft().unsettled()
                lane.batch = 0  # calls take long: the next batch is claimed when there is a slot for it
        return taken

    def hold_until(self, call: Call, thread: "asyncio.Future[Any]") -> None:
        """Keeps one more slot until a thread that cannot be stopped ends by itself."""
        lane = self._lanes[call.queue]
        lane.held += 1
        self._held += 1
        self.abandoned += 1

        def ended(thread: "asyncio.Future[Any]") -> None:
            if not thread.cancelled() and thread.exception() is not None:
                logger.info("%s: its thread ended at last, with %r", call, thread.exception())
            lane.held -= 1
            self._held -= 1
            self.abandoned -= 1
            self._freed()

        thread.add_done_callback(ended)

    def get(self, job_id: int) -> Flight | None:
        return self._flights.get(job_id)

    def __iter__(self) -> Iterator[Flight]:
        return iter(list(self._flights.values()))

    def __len__(self) -> int:
        return len(self._flights)
