"""OpenTelemetry tracing: enqueue stores the trace context in the job's metadata, and each run is a span linked to it.
Each step of a durable job is a span too, and each batch of a maintenance task.

There is no switch: tracing is on if the program has imported OpenTelemetry and set a tracer provider. A program that
has not pays nothing, not even the import.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from awa_py.model.job import JobSpec, NewJob
from awa_py.model.outcomes import Outcome
from awa_py.text import class_name

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Span

NO_SPAN = nullcontext()
METADATA_KEY = "trace"  # the value is a W3C trace context: {"traceparent": "00-…", "tracestate": "…"}


def is_enabled() -> bool:
    """Return whether this process has a tracer provider that records spans."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return False
    return not isinstance(trace.get_tracer_provider(), (trace.ProxyTracerProvider, trace.NoOpTracerProvider))


def add_trace_context(jobs: Sequence[NewJob]) -> Sequence[NewJob]:
    """Return the jobs with the current trace context in their metadata; unchanged if there is none."""
    carrier = _current_context() if "opentelemetry.trace" in sys.modules else None
    if not carrier:
        return jobs
    specs: dict[int, JobSpec] = {}  # jobs that shared a spec share the new one too
    for job in jobs:
        if id(job.spec) not in specs:
            specs[id(job.spec)] = replace(job.spec, metadata={**(job.spec.metadata or {}), METADATA_KEY: carrier})
    return [NewJob.from_spec(specs[id(job.spec)], *job[1:]) for job in jobs]


def _current_context() -> dict[str, str]:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier


class Tracer:
    """Creates the spans of a worker."""

    def __init__(self, worker: str) -> None:
        from opentelemetry import trace

        self._trace = trace
        self._tracer = trace.get_tracer("awa", _version())
        self._worker = worker

    @contextmanager
    def start_span(self, fields: Mapping[str, Any], metadata: Sequence[str | None]) -> Iterator["Span"]:
        """Start the span of one handler call: a new trace, linked to the spans that enqueued its jobs."""
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
            record_exception=False,  # the message may contain the job's data
            set_status_on_exception=False,
        ) as span:
            yield span

    def record_outcome(self, span: "Span", result: object, *, is_error: bool) -> None:
        """Record how the handler ended: the outcome or the error's type, never its message."""
        if isinstance(result, Outcome):
            span.set_attribute("awa.job.outcome", type(result).__name__.lower())
        if is_error:
            span.set_attribute("error.type", class_name(result, "__qualname__"))
            span.set_status(self._trace.StatusCode.ERROR)


def step_span(name: str, full_name: str, step_type: str) -> "AbstractContextManager[Span | None]":
    """Return the span of a step that runs, a child of the job's span; or a context that does nothing.

    `name` is shared by all steps of a loop, `full_name` has their number or key.
    """
    return _step_span(name, full_name, step_type) if is_enabled() else NO_SPAN


@contextmanager
def _step_span(name: str, full_name: str, step_type: str) -> Iterator["Span"]:
    from opentelemetry import trace

    attributes = {"awa.step.name": full_name, "awa.step.type": step_type}
    with trace.get_tracer("awa", _version()).start_as_current_span(
        f"step {name}",
        attributes=attributes,
        record_exception=False,  # the message may contain the job's data
        set_status_on_exception=False,
    ) as span:
        try:
            yield span
        except Exception as error:  # not if the job waits, or if the worker stops
            span.set_attribute("error.type", class_name(error, "__qualname__"))
            span.set_status(trace.StatusCode.ERROR)
            raise


@contextmanager
def task_span(task: str) -> Iterator["Span | None"]:
    """Run one batch of a maintenance task in a span, if tracing is on."""
    if not is_enabled():
        yield None
        return
    from opentelemetry import trace
    from opentelemetry.context import Context

    with trace.get_tracer("awa", _version()).start_as_current_span(
        f"maintenance {task}",
        context=Context(),
        attributes={"awa.task.name": task},
        record_exception=False,  # the message may contain data
        set_status_on_exception=False,
    ) as span:
        try:
            yield span
        except Exception as error:
            span.set_attribute("error.type", type(error).__qualname__)
            span.set_status(trace.StatusCode.ERROR)
            raise


@cache
def _version() -> str:
    return version("awa-py")


def _link(metadata: str | None) -> "Link | None":
    """Return a link to the span in which the job was enqueued, if its metadata contains one."""
    if metadata is None or f'"{METADATA_KEY}"' not in metadata:
        return None
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = json.loads(metadata).get(METADATA_KEY)
    if not isinstance(carrier, dict):
        return None
    texts = {name: value for name, value in carrier.items() if isinstance(value, str)}
    context = trace.get_current_span(TraceContextTextMapPropagator().extract(texts)).get_span_context()
    return trace.Link(context) if context.is_valid else None
