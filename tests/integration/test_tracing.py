"""Trace context in job metadata, spans of handler calls, and export to a collector."""

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics.export import HistogramDataPoint, NumberDataPoint
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary

import awa_py as awa
from awa_py import App, NewJob
from awa_py.observability.otlp import metrics_data
from awa_py.observability.tracing import NO_SPAN, step_span
from awa_py.store.session import Session
from awa_py.worker.handler_calls import HandlerCalls
from awa_py.worker.tracing_calls import TracingCalls, handler_calls_type
from tests.processes import eventually, processes
from tests.support import drain

pytestmark = pytest.mark.integration


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Collect all spans with a tracer provider for this test."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


def runs(spans: InMemorySpanExporter) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.kind is SpanKind.CONSUMER]


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


class TestTraceContext:
    @pytest.mark.parametrize("count", [1, 2, 200])
    async def test_span_links_to_the_span_that_enqueued_the_job(
        self, app: App, spans: InMemorySpanExporter, count: int
    ) -> None:
        @app.job(queue="email", metadata={"mine": 1})
        async def work(n: int) -> None: ...

        async with app:
            with trace.get_tracer("test").start_as_current_span("request") as request:
                new = [work.new(n) for n in range(count)]
                jobs = [await work.enqueue(0)] if count == 1 else list(await app.enqueue_many(new))
            assert jobs[0].metadata["mine"] == 1
            parent = jobs[0].metadata["trace"]["traceparent"]
            enqueuer = request.get_span_context()
            assert parent.startswith(f"00-{enqueuer.trace_id:032x}-{enqueuer.span_id:016x}-")
            assert (await app.get(jobs[-1].id)).metadata == jobs[0].metadata
            await drain(app, "email")
        found = runs(spans)
        assert len(found) == count
        assert {span.name for span in found} == {"process work"}
        assert {span.parent for span in found} == {None}
        assert {span.links[0].context.span_id for span in found} == {enqueuer.span_id}
        assert {span.context.trace_id for span in found}.isdisjoint({enqueuer.trace_id})
        first = min(found, key=lambda span: int(attributes(span)["messaging.message.id"]))
        assert attributes(first) == {
            "messaging.system": "awa",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": "email",
            "messaging.message.id": str(jobs[0].id),
            "awa.job.kind": "work",
            "awa.job.attempt": 1,
            "awa.worker.id": attributes(first)["awa.worker.id"],
        }

    async def test_handler_runs_and_enqueues_inside_its_span(self, app: App, spans: InMemorySpanExporter) -> None:
        inside: list[Any] = []

        @app.job
        async def first() -> None:
            await asyncio.sleep(0)
            inside.append(trace.get_current_span().get_span_context().span_id)
            await second.enqueue()

        @app.job
        def second() -> None:
            inside.append(trace.get_current_span().get_span_context().span_id)

        async with app:
            await first.enqueue()
            await drain(app)
        one, two = runs(spans)
        assert inside == [one.context.span_id, two.context.span_id]
        assert [link.context.span_id for link in two.links] == [one.context.span_id]
        assert not one.links

    async def test_span_of_a_batch_links_to_all_enqueuers(self, app: App, spans: InMemorySpanExporter) -> None:
        @app.job(batch=10)
        async def together(jobs: list[awa.BatchJob]) -> None: ...

        async with app:
            with trace.get_tracer("test").start_as_current_span("a"):
                await together.enqueue()
            with trace.get_tracer("test").start_as_current_span("b"):
                await together.enqueue()
            await together.enqueue()
            await drain(app)
        (run,) = runs(spans)
        assert len(run.links) == 2
        assert attributes(run)["messaging.batch.message_count"] == 3

    @pytest.mark.parametrize(
        "metadata", ['{"trace": 5}', '{"trace": {"traceparent": "x"}}', '{"trace": {"traceparent": 1}}', '{"other": 1}']
    )
    async def test_invalid_trace_metadata_is_ignored(
        self, app: App, session: Session, spans: InMemorySpanExporter, metadata: str
    ) -> None:
        @app.job
        async def work() -> None: ...

        await session.connection.execute("SELECT awa.enqueue('work', '{}', metadata => $1::jsonb)", metadata)
        async with app:
            await drain(app)
        (run,) = runs(spans)
        assert not run.links

    async def test_nothing_is_traced_without_a_tracer_provider(self, app: App) -> None:
        @app.job
        async def work() -> None: ...

        async with app:
            job = await work.enqueue()
        assert job.metadata == {}
        assert handler_calls_type() is HandlerCalls

    def test_tracing_process_runs_its_calls_in_spans(self, spans: InMemorySpanExporter) -> None:
        assert handler_calls_type() is TracingCalls


class TestOutcome:
    @pytest.mark.parametrize(
        ("end", "status", "error", "outcome"),
        [
            (ValueError("secret"), StatusCode.ERROR, "ValueError", None),
            (awa.Retry("secret", after=3600), StatusCode.ERROR, "Retry", "retry"),
            (awa.Fail("secret"), StatusCode.ERROR, "Fail", "fail"),
            (awa.Cancel("secret"), StatusCode.UNSET, None, "cancel"),
            (awa.Snooze(3600), StatusCode.UNSET, None, "snooze"),
            (awa.Next("next", delay=3600), StatusCode.UNSET, None, "next"),
            (awa.Throttled("secret"), StatusCode.UNSET, None, "throttled"),
            (None, StatusCode.UNSET, None, None),
        ],
    )
    @pytest.mark.parametrize("returned", [False, True])
    async def test_span_has_the_outcome_without_the_message(
        self,
        app: App,
        spans: InMemorySpanExporter,
        end: Exception | None,
        status: StatusCode,
        error: str | None,
        outcome: str | None,
        returned: bool,
    ) -> None:
        @app.job(max_attempts=2)
        async def work(token: str) -> Any:
            if end is None or (returned and outcome is not None):
                return end
            raise end

        async with app:
            await work.options(max_attempts=1).enqueue("secret")
            await drain(app)
        (run,) = runs(spans)
        assert run.status.status_code is status
        assert attributes(run).get("error.type") == error
        assert attributes(run).get("awa.job.outcome") == outcome
        assert "secret" not in run.to_json()

    async def test_timeouts_and_invalid_arguments_are_span_errors(
        self, app: App, session: Session, spans: InMemorySpanExporter
    ) -> None:
        @app.job(timeout=0.1, max_attempts=1)
        async def long() -> None:
            await asyncio.sleep(60)

        @app.job(max_attempts=1)
        async def work(n: int) -> None: ...

        async with app:
            await long.enqueue()
            await app.client.enqueue(NewJob(kind="work", args_json='{"n": "secret"}', max_attempts=1))
            await drain(app)
        found = {span.name: span for span in runs(spans)}
        assert attributes(found["process long"])["error.type"] == "HandlerTimeout"
        assert attributes(found["process work"])["error.type"] == "UnfitArguments"
        assert "secret" not in found["process work"].to_json()


def steps(spans: InMemorySpanExporter) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name.startswith("step ")]


class TestSteps:
    @pytest.mark.parametrize("is_async", [True, False])
    async def test_step_is_a_child_of_the_span_of_its_job(
        self, app: App, spans: InMemorySpanExporter, is_async: bool
    ) -> None:
        inside: list[int] = []

        def double(n: int) -> int:
            inside.append(trace.get_current_span().get_span_context().span_id)
            return 2 * n

        async def book(connection: Any, n: int) -> int:
            return n

        if is_async:

            @app.job
            async def order(ctx: awa.Context) -> None:
                await ctx.step("double", double, 1)
                await ctx.step("double", double, 2)
                await ctx.transact("book", book, 3)
        else:

            @app.job(kind="order")
            def order_in_thread(ctx: awa.Context) -> None:
                ctx.step("double", double, 1).result()
                ctx.step("double", double, 2).result()
                ctx.transact("book", book, 3).result()

        async with app:
            await app.enqueue("order")
            await drain(app)
        (run,) = runs(spans)
        found = steps(spans)
        assert [(span.name, attributes(span)) for span in found] == [
            ("step double", {"awa.step.name": "double", "awa.step.type": "step", "awa.step.tries": 1}),
            ("step double", {"awa.step.name": "double#2", "awa.step.type": "step", "awa.step.tries": 1}),
            ("step book", {"awa.step.name": "book", "awa.step.type": "transaction", "awa.step.tries": 1}),
        ]
        assert run.context is not None
        assert {span.parent and span.parent.span_id for span in found} == {run.context.span_id}
        assert inside == [span.context.span_id for span in found[:2] if span.context is not None]

    async def test_replayed_step_has_no_span(self, app: App, spans: InMemorySpanExporter) -> None:
        failures = [ValueError("once")]

        async def nothing() -> None: ...

        @app.job
        async def order(ctx: awa.Context) -> None:
            await ctx.step("a", nothing)
            if failures:
                raise failures.pop()
            await ctx.step("b", nothing)

        async with app:
            job = await order.enqueue()
            await drain(app)
            await app.retry(job)
            await drain(app)
        assert len(runs(spans)) == 2
        assert [span.name for span in steps(spans)] == ["step a", "step b"]

    async def test_error_of_a_step_has_no_message(self, app: App, spans: InMemorySpanExporter) -> None:
        async def decline() -> None:
            raise ValueError("secret")

        @app.job
        async def order(ctx: awa.Context) -> None:
            try:
                await ctx.step("decline", decline).retry(3, base="1ms")
            except ValueError:
                return

        async with app:
            await order.enqueue()
            await drain(app)
        (step,) = steps(spans)
        assert step.status.status_code is StatusCode.ERROR
        assert attributes(step)["error.type"] == "ValueError"
        assert attributes(step)["awa.step.tries"] == 3
        assert "secret" not in step.to_json()
        assert runs(spans)[0].status.status_code is StatusCode.UNSET

    async def test_step_that_waits_for_its_next_try_is_no_error(self, app: App, spans: InMemorySpanExporter) -> None:
        async def decline() -> None:
            raise ValueError("secret")

        @app.job
        async def order(ctx: awa.Context) -> None:
            await ctx.step("decline", decline).retry(3, base="1h")

        async with app:
            job = await order.enqueue()
            await drain(app)
            assert (await app.get(job)).state is awa.State.WAITING
        (step,) = steps(spans)
        assert (step.status.status_code, attributes(step)["awa.step.tries"]) == (StatusCode.UNSET, 1)

    async def test_process_without_a_provider_makes_no_span(self, app: App) -> None:
        assert step_span("a", "a", "step") is NO_SPAN


class TestMetrics:
    def test_prometheus_metrics_are_converted(self) -> None:
        registry = CollectorRegistry()
        Counter("jobs_total", "Jobs", ["queue"], registry=registry).labels("email").inc(3)
        Gauge("running", "Now", registry=registry).set(2)
        Summary("size", "Sizes", registry=registry).observe(5)
        histogram = Histogram("wait_seconds", "Waits", ["queue"], buckets=(0.1, 1), registry=registry)
        for value in (0.05, 0.5, 0.6, 7):
            histogram.labels("email").observe(value)
        data = metrics_data(registry.collect(), Resource({}), 1, 2)
        found = {metric.name: metric for metric in data.resource_metrics[0].scope_metrics[0].metrics}
        assert {name: type(metric.data).__name__ for name, metric in found.items()} == {
            "jobs": "Sum",
            "running": "Gauge",
            "size_count": "Gauge",
            "size_sum": "Gauge",
            "wait_seconds": "Histogram",
        }
        counted, waited = (found[name].data.data_points[0] for name in ("jobs", "wait_seconds"))
        assert isinstance(counted, NumberDataPoint)
        assert (counted.attributes, counted.value, found["jobs"].description) == ({"queue": "email"}, 3, "Jobs")
        assert isinstance(waited, HistogramDataPoint)
        assert (waited.bucket_counts, waited.explicit_bounds) == ([1, 2, 1], [0.1, 1.0])
        assert waited.count == 4
        assert waited.sum == pytest.approx(8.15)


class Collector:
    """A fake OpenTelemetry collector that records the requests by path."""

    def __init__(self) -> None:
        self.posts: dict[str, list[bytes]] = {"/v1/traces": [], "/v1/metrics": []}
        posts = self.posts

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                posts[self.path].append(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def spans(self) -> list[Any]:
        requests = [ExportTraceServiceRequest.FromString(body) for body in self.posts["/v1/traces"]]
        return [span for request in requests for r in request.resource_spans for s in r.scope_spans for span in s.spans]

    def metrics(self) -> dict[str, Any]:
        requests = [ExportMetricsServiceRequest.FromString(body) for body in self.posts["/v1/metrics"]]
        return {
            metric.name: metric
            for request in requests
            for r in request.resource_metrics
            for s in r.scope_metrics
            for metric in s.metrics
        }

    def services(self) -> set[str]:
        requests = [ExportTraceServiceRequest.FromString(body) for body in self.posts["/v1/traces"]]
        found = [attribute for r in requests for s in r.resource_spans for attribute in s.resource.attributes]
        return {attribute.value.string_value for attribute in found if attribute.key == "service.name"}


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.server.shutdown()
    collector.server.server_close()


async def test_worker_exports_spans_and_metrics_to_the_collector(
    app: App, database_url: str, tmp_path: Path, collector: Collector, spans: InMemorySpanExporter
) -> None:
    async with app:
        with trace.get_tracer("test").start_as_current_span("request") as request:
            job = await app.enqueue("quick", {})
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_METRIC_EXPORT_INTERVAL": "200"}
        with processes(tmp_path, database_url, environment) as started:
            worker = started.worker("--burst")
            assert worker.wait(60) == 0
        await eventually("the job is done", lambda: _done(app, job.id))
    (run,) = (span for span in collector.spans() if span.name == "process quick")
    assert run.links[0].span_id == request.get_span_context().span_id.to_bytes(8, "big")
    assert collector.services() == {"awa"}
    completed = collector.metrics()["awa_jobs_completed"].sum
    assert completed.is_monotonic
    assert [(point.attributes[0].value.string_value, point.as_double) for point in completed.data_points] == [
        ("default", 1.0)
    ]


async def _done(app: App, job_id: int) -> bool:
    return (await app.get(job_id)).state.final


def test_invalid_interval_is_an_error(database_url: str, tmp_path: Path) -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_METRIC_EXPORT_INTERVAL": "often"}
    with processes(tmp_path, database_url, environment) as started:
        worker = started.worker("--burst")
        assert worker.wait(60) == 1
    assert worker.output == "awa: OTEL_METRIC_EXPORT_INTERVAL must be a whole number of milliseconds, at least 1\n"
