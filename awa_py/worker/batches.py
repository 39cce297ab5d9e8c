"""Jobs for batch handlers: gathered, handed over as one list, and settled each on its own."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from awa_py.model.context import BatchJob
from awa_py.model.registry import Handler
from awa_py.worker.claimed_job import OVERRAN, ClaimedJob, StopReason


class Batch:
    """Jobs that one call of a handler takes together. The call holds one slot, however many they are."""

    __slots__ = (
        "_abandoned",
        "_by_id",
        "_settle",
        "_unsettled",
        "_wanted",
        "flights",
        "handler",
        "kind",
        "queue",
        "size",
        "stop",
        "task",
        "waiting_since",
    )

    def __init__(self, handler: Handler, flights: Sequence[ClaimedJob]) -> None:
        self.handler = handler
        self.kind = handler.kind
        self.flights = flights
        self.queue = flights[0].queue
        self.waiting_since = time.monotonic()
        self.size = len(flights)
        self._by_id = {flight.id: flight for flight in flights}
        self._unsettled = dict(self._by_id)
        self._settle: Callable[[Batch, int, object], None] | None = None
        self._wanted = set(self._unsettled)
        self.stop: StopReason | None = None
        self.task: asyncio.Task[None] | None = None
        self._abandoned = False
        for flight in flights:
            flight.told = self._one_is_told
            if flight.stop is not None:
                self._one_is_told(flight, flight.stop)

    def request_stop(self, reason: StopReason) -> None:
        """Tells the handler to stop, whatever its jobs were told: an asynchronous one is interrupted."""
        if self.stop not in (reason, StopReason.SHUTDOWN):  # once for each reason: it may be cleaning up
            self.stop = reason
            if self.task is not None:
                self.task.cancel()

    def _one_is_told(self, flight: ClaimedJob, reason: StopReason) -> None:
        """The call is interrupted once none of the jobs that it has not settled is wanted any more."""
        self._wanted.discard(flight.id)
        if self._unsettled and not self._wanted:
            self.request_stop(reason)

    @property
    def limit(self) -> tuple[float, float] | None:
        """The earliest of its jobs' limits."""
        limited = [flight for flight in self.flights if flight.limit_s is not None]
        return min((limit for flight in limited if (limit := flight.limit) is not None), default=None)

    def settle(self, job_id: int) -> ClaimedJob | None:
        """The handler has settled that job; None where its call had ended before."""
        self._wanted.discard(job_id)
        return self._unsettled.pop(job_id, None)

    def open_jobs(self) -> list[ClaimedJob]:
        """The jobs whose outcome is open; after this call, none is."""
        flights, self._unsettled = list(self._unsettled.values()), {}
        return flights

    def unwanted(self) -> list[ClaimedJob]:
        """The jobs that were told to stop before the handler could see them: it never will."""
        unwanted = [flight for flight in self.flights if flight.stop is not None]
        for flight in unwanted:
            del self._unsettled[flight.id]
        return unwanted

    def jobs(self, settle: Callable[["Batch", int, object], None]) -> list[BatchJob]:
        """What the handler sees; what it says of one of them goes to `settle`."""
        self._settle = settle
        return [BatchJob(flight, self) for flight in self._unsettled.values()]

    def settle_job(self, job_id: int, end: object) -> None:
        """The handler has settled one of its jobs: from the loop, or from its thread."""
        assert self._settle is not None
        self._settle(self, job_id, end)

    def stop_reason(self, job_id: int) -> str | None:
        """Why the handler need not go on with that job, where it need not."""
        return self._by_id[job_id].stop or (OVERRAN if self._abandoned else None)

    def is_abandoned(self) -> None:
        """Its thread cannot be interrupted: whoever looks there sees that its work is not wanted any more."""
        self._abandoned = True

    def fields(self) -> dict[str, Any]:
        """What log lines about it say."""
        return {"jobs": self.size, "job_kind": self.handler.kind, "queue": self.queue}

    def __str__(self) -> str:
        return f"{self.size} jobs ({self.handler.kind})"


class BatchCollector:
    """Gathers jobs of one kind and queue: a batch is full, or its first job has waited long enough."""

    def __init__(self, handler: Handler, dispatch: Callable[[Batch], None]) -> None:
        assert handler.batching is not None
        self._handler = handler
        self._size = handler.batching.size
        self._linger_s = handler.batching.linger_s
        self._dispatch = dispatch
        self._flights: list[ClaimedJob] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, flights: Sequence[ClaimedJob]) -> None:
        self._flights.extend(flights)
        while len(self._flights) >= self._size:
            self._send()
        if self._flights and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._linger_s, self._send)

    def take_back(self) -> list[ClaimedJob]:
        """Takes those back that still wait for others."""
        flights, self._flights = self._flights, []
        return flights

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._flights:
            flights, self._flights = self._flights[: self._size], self._flights[self._size :]
            self._dispatch(Batch(self._handler, flights))
