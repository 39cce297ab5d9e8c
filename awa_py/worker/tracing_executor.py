"""An executor that runs each handler call in an OpenTelemetry span."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from awa_py.observability import tracing
from awa_py.observability.logs import current_worker
from awa_py.store.claim import claimed_metadata
from awa_py.worker.batches import Batch
from awa_py.worker.claimed_job import ClaimedJob
from awa_py.worker.executor import Executor
from awa_py.worker.outcome_table import OUTCOMES

C = TypeVar("C", ClaimedJob, Batch)


def executor_type() -> type[Executor]:
    """Return the executor for this process: a TracingExecutor if it has a tracer provider."""
    return TracingExecutor if tracing.is_enabled() else Executor


class TracingExecutor(Executor):
    """Runs each call in a span that links to the spans in which its jobs were enqueued."""

    needs_details = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._tracer = tracing.Tracer(current_worker.get() or "")

    def _call_handler(self, job: ClaimedJob) -> Coroutine[Any, Any, Any]:
        return self._in_span(super()._call_handler, job, job)

    def _call_batch_handler(self, batch: Batch) -> Coroutine[Any, Any, Any]:
        return self._in_span(super()._call_batch_handler, batch, *batch.jobs)

    async def _in_span(self, make_call: Callable[[C], Coroutine[Any, Any, Any]], call: C, *jobs: ClaimedJob) -> Any:
        if call.stop is not None:
            return await make_call(call)
        with self._tracer.start_span(call.fields(), [claimed_metadata(job.row) for job in jobs]) as span:
            try:
                end = await make_call(call)
            except BaseException as error:
                self._tracer.record_outcome(span, error, is_error=self._is_error(call, error))
                raise
            self._tracer.record_outcome(span, end, is_error=self._is_error(call, end))
            return end

    def _is_error(self, call: C, end: object) -> bool:
        if not isinstance(end, BaseException):
            return False
        outcome = self._outcome_of(call, end)
        is_span_error = OUTCOMES[type(outcome)].is_span_error
        return is_span_error is not None and is_span_error(outcome)
