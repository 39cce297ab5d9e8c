"""Runs handlers, each call in a span of its own."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from awa_py.observability import tracing
from awa_py.observability.logs import current_worker
from awa_py.store.claim import claimed_metadata
from awa_py.worker.batches import Batch
from awa_py.worker.claimed_job import ClaimedJob
from awa_py.worker.executor import Executor

C = TypeVar("C", ClaimedJob, Batch)


def executor_type() -> type[Executor]:
    """What runs this process's handlers: with spans where it traces."""
    return TracedExecutor if tracing.is_enabled() else Executor


class TracedExecutor(Executor):
    """An Executor whose calls are spans, which link to those in which their jobs were enqueued."""

    needs_details = True

    def __init__(self, *parts: Any, **named: Any) -> None:
        super().__init__(*parts, **named)
        self._tracer = tracing.Tracer(current_worker.get() or "")

    def _begin(self, flight: ClaimedJob) -> Coroutine[Any, Any, Any]:
        return self._in_span(super()._begin, flight, flight)

    def _begin_batch(self, batch: Batch) -> Coroutine[Any, Any, Any]:
        return self._in_span(super()._begin_batch, batch, *batch.flights)

    async def _in_span(self, begin: Callable[[C], Coroutine[Any, Any, Any]], call: C, *flights: ClaimedJob) -> Any:
        if call.stop is not None:
            return await begin(call)
        with self._tracer.start_span(call.fields(), [claimed_metadata(flight.row) for flight in flights]) as span:
            end = await begin(call)
            self._tracer.record_outcome(span, end)
            return end
