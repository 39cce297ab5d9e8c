"""All metrics of awa: name, type, labels and help text."""

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import Counter, Gauge

from awa_py.observability.histogram import Histogram
from awa_py.observability.http.aggregate import LABEL, STARTS, UP
from awa_py.observability.metrics import Gauges, Metrics


@dataclass(frozen=True)
class MetricSpec:
    name: str
    type: str
    labels: tuple[str, ...]
    help: str


def all_metrics() -> list[MetricSpec]:
    return [
        *(metric for value in vars(Metrics()).values() for metric in _specs(value)),
        MetricSpec(UP[0], "gauge", (LABEL,), UP[1]),
        MetricSpec(STARTS[0], "counter", (LABEL,), STARTS[1]),
    ]


def _specs(value: object) -> Iterator[MetricSpec]:
    match value:
        case Counter() | Gauge():
            (family,) = value.describe()
            name = f"{family.name}_total" if family.type == "counter" else family.name
            yield MetricSpec(name, family.type, tuple(value._labelnames), family.documentation)
        case Histogram() | Gauges():
            for family in value.describe():
                yield MetricSpec(family.name, family.type, tuple(family._labelnames), family.documentation)


def labels_by_series() -> dict[str, set[str]]:
    """Return the labels of each series that a query can name. A histogram has several series."""
    labels: dict[str, set[str]] = {}
    for metric in all_metrics():
        suffixes = ("_bucket", "_sum", "_count") if metric.type == "histogram" else ("",)
        for suffix in suffixes:
            labels[metric.name + suffix] = {*metric.labels, *({"le"} if suffix == "_bucket" else ())}
    return labels
