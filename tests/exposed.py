"""Every metric that awa can show: its name, type, labels and help."""

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import Counter, Gauge

from awa_py.observability.histogram import Histogram
from awa_py.observability.http.aggregate import LABEL, STARTS, UP
from awa_py.observability.metrics import Gauges, Metrics


@dataclass(frozen=True)
class Exposed:
    name: str
    type: str
    labels: tuple[str, ...]
    text: str


def exposed() -> list[Exposed]:
    return [
        *(metric for value in vars(Metrics()).values() for metric in _of(value)),
        Exposed(UP[0], "gauge", (LABEL,), UP[1]),
        Exposed(STARTS[0], "counter", (LABEL,), STARTS[1]),
    ]


def _of(value: object) -> Iterator[Exposed]:
    match value:
        case Counter() | Gauge():
            (family,) = value.describe()
            name = f"{family.name}_total" if family.type == "counter" else family.name
            yield Exposed(name, family.type, tuple(value._labelnames), family.documentation)
        case Histogram() | Gauges():
            for family in value.describe():
                yield Exposed(family.name, family.type, tuple(family._labelnames), family.documentation)


def labels_by_series() -> dict[str, set[str]]:
    """The labels of each series that a query may name; a histogram has several."""
    found: dict[str, set[str]] = {}
    for metric in exposed():
        suffixes = ("_bucket", "_sum", "_count") if metric.type == "histogram" else ("",)
        for suffix in suffixes:
            found[metric.name + suffix] = {*metric.labels, *({"le"} if suffix == "_bucket" else ())}
    return found
