"""Handler calls that run in OpenTelemetry spans."""

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from awa_py.observability import tracing
from awa_py.observability.logs import current_worker
from awa_py.store.claim import claimed_metadata
from awa_py.worker.batches import Batch
from awa_py.worker.claimed_job import ClaimedJob
from awa_py.worker.handler_calls import HandlerCalls
from awa_py.worker.outcome_table import OUTCOMES

C = TypeVar("C", ClaimedJob, Batch)


def handler_calls_type() -> type[HandlerCalls]:
    """Return the class for this process: TracingCalls if it has a tracer provider."""
    return TracingCalls if tracing.is_enabled() else HandlerCalls


class TracingCalls(HandlerCalls):
    """Runs each call in a span that links to the spans in which its jobs were enqueued."""

    needs_details = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._tracer = tracing.Tracer(current_worker.get() or "")

    def prepare(self, job: ClaimedJob) -> Coroutine[Any, Any, Any]:
        return self._in_span(super().prepare, job, job)

    def prepare_batch(
        self,
        batch: Batch,
        *,
        release: Callable[[Sequence[ClaimedJob]], None],
        on_settled: Callable[[Batch, int, object], None],
    ) -> Coroutine[Any, Any, Any]:
        prepare = partial(super().prepare_batch, release=release, on_settled=on_settled)
        return self._in_span(prepare, batch, *batch.jobs)

    async def _in_span(self, prepare: Callable[[C], Coroutine[Any, Any, Any]], call: C, *jobs: ClaimedJob) -> Any:
        if call.stop is not None:
            return await prepare(call)
        with self._tracer.start_span(call.fields(), [claimed_metadata(job.row) for job in jobs]) as span:
            try:
                end = await prepare(call)
            except BaseException as error:
                self._tracer.record_outcome(span, error, is_error=self._is_error(call, error))
                raise
            self._tracer.record_outcome(span, end, is_error=self._is_error(call, end))
            return end

    def _is_error(self, call: C, end: object) -> bool:
        if not isinstance(end, BaseException):
            return False
        outcome = self.outcome(call, end)
        is_span_error = OUTCOMES[type(outcome)].is_span_error
        return is_span_error is not None and is_span_error(outcome)
