"""Export traces and metrics to the OpenTelemetry collector at OTEL_EXPORTER_OTLP_ENDPOINT, if it is set.

The metrics are those of the Prometheus registry, cumulative, under the same names.
"""

import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.samples import Sample

from awa_py.errors import ConfigError
from awa_py.observability import tracing
from awa_py.observability.logs import LogThrottle
from awa_py.text import describe

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import DataT, Metric, MetricExporter, MetricsData
    from opentelemetry.sdk.resources import Resource

logger = logging.getLogger("awa.otlp")

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
METRICS_ENDPOINT = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"  # in milliseconds
DEFAULT_INTERVAL_MS = "60000"


@contextmanager
def export_telemetry(
    registry: CollectorRegistry, instance: str, environ: Mapping[str, str] = os.environ
) -> Iterator[None]:
    """Export this process's spans and metrics to the collector in the environment; do nothing without one."""
    traces, metrics = (_is_configured(name, environ) for name in (TRACES_ENDPOINT, METRICS_ENDPOINT))
    if not traces and not metrics:
        yield
        return
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter
        import opentelemetry.sdk.metrics.export  # noqa: F401
    except ImportError:
        logger.warning("%s is set, but the exporter is not installed: run pip install 'awa-py[otel]'", ENDPOINT)
        yield
        return
    with ExitStack() as stack:
        if metrics:
            stack.enter_context(_metrics(registry, instance, environ))
        if traces and not tracing.is_enabled():  # the app may have set up its own tracer provider
            stack.enter_context(_traces(instance))
        yield


def _is_configured(endpoint: str, environ: Mapping[str, str]) -> bool:
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    return bool(environ.get(endpoint, "").strip() or environ.get(ENDPOINT, "").strip())


def _resource(instance: str) -> "Resource":
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    own = Resource({"service.name": "awa", "service.instance.id": instance, "service.version": version("awa-py")})
    return own.merge(OTELResourceDetector().detect())  # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win


@contextmanager
def _traces(instance: str) -> Iterator[None]:
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=_resource(instance), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()


@contextmanager
def _metrics(registry: CollectorRegistry, instance: str, environ: Mapping[str, str]) -> Iterator[None]:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    exporter = PeriodicMetricExporter(registry, OTLPMetricExporter(), _resource(instance), _interval_s(environ))
    exporter.start()
    try:
        yield
    finally:
        exporter.stop()


def _interval_s(environ: Mapping[str, str]) -> float:
    text = environ.get(INTERVAL, "").strip() or DEFAULT_INTERVAL_MS
    if not text.isdecimal() or int(text) == 0:
        raise ConfigError(f"{INTERVAL} must be a whole number of milliseconds, at least 1")
    return int(text) / 1000


class PeriodicMetricExporter:
    """Exports all metrics at an interval, and once more at the end."""

    def __init__(
        self, registry: CollectorRegistry, exporter: "MetricExporter", resource: "Resource", interval_s: float
    ) -> None:
        self._registry = registry
        self._exporter = exporter
        self._resource = resource
        self._interval_s = interval_s
        self._started_ns = time.time_ns()
        self._log_throttle = LogThrottle(logger)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="awa-otlp", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        self._exporter.shutdown()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_s):
            self._export()
        self._export()

    def _export(self) -> None:
        try:
            self._exporter.export(
                metrics_data(self._registry.collect(), self._resource, self._started_ns, time.time_ns())
            )
        except Exception as error:  # the next export may succeed
            self._log_throttle.log(logging.WARNING, "export", "could not export metrics: %s", describe(error))


def metrics_data(families: Iterable[Family], resource: "Resource", started_ns: int, now_ns: int) -> "MetricsData":
    """Convert Prometheus metric families to OpenTelemetry's format."""
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    metrics = [metric for family in families for metric in _convert(family, started_ns, now_ns)]
    scope = ScopeMetrics(scope=InstrumentationScope("awa", version("awa-py")), metrics=metrics, schema_url="")
    return MetricsData([ResourceMetrics(resource=resource, scope_metrics=[scope], schema_url="")])


def _convert(family: Family, started_ns: int, now_ns: int) -> Iterator["Metric"]:
    """Yield one metric; for types that OpenTelemetry does not have, one per series."""
    from opentelemetry.sdk.metrics.export import AggregationTemporality, Gauge, Histogram, Metric, NumberDataPoint, Sum

    def points(samples: Iterable[Sample]) -> list[NumberDataPoint]:
        return [NumberDataPoint(sample.labels, started_ns, now_ns, sample.value) for sample in samples]

    series: dict[str, list[Sample]] = defaultdict(list)
    for sample in family.samples:
        if not sample.name.endswith("_created"):
            series[sample.name].append(sample)
    found: dict[str, DataT] = {}
    if family.type == "counter":
        for samples in series.values():
            found[family.name] = Sum(points(samples), AggregationTemporality.CUMULATIVE, is_monotonic=True)
    elif family.type == "histogram":
        histograms = _histogram_points(series, family.name, started_ns, now_ns)
        found[family.name] = Histogram(histograms, AggregationTemporality.CUMULATIVE)
    else:
        found = {name: Gauge(points(samples)) for name, samples in series.items()}
    for name, data in found.items():
        yield Metric(name, family.documentation, family.unit, data)


def _histogram_points(series: Mapping[str, list[Sample]], name: str, started_ns: int, now_ns: int) -> list[Any]:
    from opentelemetry.sdk.metrics.export import HistogramDataPoint

    buckets: dict[tuple[tuple[str, str], ...], list[Sample]] = defaultdict(list)
    for sample in series[f"{name}_bucket"]:
        buckets[_labels(sample)].append(sample)
    sums = {_labels(sample): sample.value for sample in series[f"{name}_sum"]}
    points = []
    for labels, found in buckets.items():
        found.sort(key=lambda sample: float(sample.labels["le"]))
        counts = [int(sample.value) for sample in found]
        points.append(
            HistogramDataPoint(
                attributes=dict(labels),
                start_time_unix_nano=started_ns,
                time_unix_nano=now_ns,
                count=counts[-1],
                sum=sums.get(labels, 0.0),
                bucket_counts=[count - before for count, before in zip(counts, [0, *counts], strict=False)],
                explicit_bounds=[float(sample.labels["le"]) for sample in found[:-1]],
                min=None,  # type: ignore[arg-type]  # not recorded
                max=None,  # type: ignore[arg-type]
            )
        )
    return points


def _labels(sample: Sample) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
