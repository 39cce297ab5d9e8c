"""OpenTelemetry: the enqueuer's trace context travels in a job's metadata, and each run is a span that links to it.

Nobody switches it on here: a program that traces has imported OpenTelemetry and set a tracer provider up, and one that
does not pays for nothing, not even for the import.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from awa_py.model.job import JobSpec, NewJob
from awa_py.model.outcomes import Cancel, Outcome, Snooze, Throttled

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Span

KEY = "trace"  # in a job's metadata: {"traceparent": "00-…", "tracestate": "…"}, as W3C writes them


def is_enabled() -> bool:
    """Whether this process has a tracer provider that does anything."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return False
    return not isinstance(trace.get_tracer_provider(), (trace.ProxyTracerProvider, trace.NoOpTracerProvider))


def add_trace_context(jobs: Sequence[NewJob]) -> Sequence[NewJob]:
    """The jobs, with the trace context of whoever enqueues them; as they are where nobody traces."""
    carrier = _current() if "opentelemetry.trace" in sys.modules else None
    if not carrier:
        return jobs
    spec: dict[int, JobSpec] = {}  # jobs go on sharing them
    for job in jobs:
        if id(job.spec) not in spec:
            spec[id(job.spec)] = replace(job.spec, metadata={**(job.spec.metadata or {}), KEY: carrier})
    return [NewJob.from_spec(spec[id(job.spec)], *job[1:]) for job in jobs]


def _current() -> dict[str, str]:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier


class Tracer:
    """Makes the spans of a worker."""

    def __init__(self, worker: str) -> None:
        from opentelemetry import trace

        self._trace = trace
        self._tracer = trace.get_tracer("awa", version("awa-py"))
        self._worker = worker

    @contextmanager
    def start_span(self, fields: Mapping[str, Any], metadata: Sequence[str | None]) -> Iterator["Span"]:
        """The span of one call of a handler: a trace of its own, linked to those that enqueued its jobs."""
        from opentelemetry.context import Context

        attributes = {
            "messaging.system": "awa",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": fields["queue"],
            "awa.job.kind": fields["job_kind"],
            "awa.worker.id": self._worker,
        }
        if "job_id" in fields:
            attributes |= {"messaging.message.id": str(fields["job_id"]), "awa.job.attempt": fields["attempt"]}
        else:
            attributes["messaging.batch.message_count"] = fields["jobs"]
        with self._tracer.start_as_current_span(
            f"process {fields['job_kind']}",
            context=Context(),
            kind=self._trace.SpanKind.CONSUMER,
            attributes=attributes,
            links=[link for text in metadata if (link := _link(text)) is not None],
            record_exception=False,  # its words are the handler's own, and may be anything
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except BaseException as error:
                self.record_outcome(span, error)
                raise

    def record_outcome(self, span: "Span", end: object) -> None:
        """How the handler ended, by what it returned or raised: what kind of error, and not a word of its text."""
        if isinstance(end, Outcome):
            span.set_attribute("awa.job.outcome", type(end).__name__.lower())
        if isinstance(end, Exception) and not isinstance(end, (Snooze, Throttled, Cancel)):
            span.set_attribute("error.type", type(end).__qualname__)
            span.set_status(self._trace.StatusCode.ERROR)


def _link(metadata: str | None) -> "Link | None":
    """To the span in which a job was enqueued, where its metadata names one."""
    if metadata is None or f'"{KEY}"' not in metadata:
        return None
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = json.loads(metadata).get(KEY)
    if not isinstance(carrier, dict):
        return None
    texts = {name: value for name, value in carrier.items() if isinstance(value, str)}
    context = trace.get_current_span(TraceContextTextMapPropagator().extract(texts)).get_span_context()
    return trace.Link(context) if context.is_valid else None
