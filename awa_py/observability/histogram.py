"""A histogram that takes its values by the batch.

prometheus-client's takes them one by one, at about a microsecond each: a tenth of what a short job costs in all.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.utils import floatToGoString


class Series:
    """The values of one set of labels. One thread at a time may observe; any may read."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self.observe_all([value])

    def observe_all(self, values: list[float]) -> None:
        """Takes them all, and sorts the list on the way."""
        values.sort()
        self._sum += sum(values)
        below = 0
        for n, bound in enumerate(self._bounds):
            if below == len(values):
                return
            upto = bisect_right(values, bound, below)
            self._counts[n] += upto - below
            below = upto
        self._counts[-1] += len(values) - below

    def read(self) -> tuple[list[int], float]:
        """How many were at or below each bound, and in all; and their sum."""
        total = 0
        return [total := total + count for count in list(self._counts)], self._sum


class Histogram:
    """What prometheus-client shows as a histogram, with no label or one."""

    def __init__(self, name: str, text: str, bounds: Sequence[float], label: str | None = None) -> None:
        self._name = name
        self._text = text
        self._bounds = tuple(bounds)
        self._shown_bounds = [*map(floatToGoString, bounds), "+Inf"]
        self._label = label
        self._series: dict[str, Series] = {} if label else {"": Series(self._bounds)}

    def labels(self, value: str) -> Series:
        if value not in self._series:
            self._series[value] = Series(self._bounds)
        return self._series[value]

    def observe(self, value: float) -> None:
        self._series[""].observe(value)

    def describe(self) -> Iterator[HistogramMetricFamily]:
        yield HistogramMetricFamily(self._name, self._text, labels=[self._label] if self._label else [])

    def collect(self) -> Iterator[HistogramMetricFamily]:
        for family in self.describe():
            for value, series in list(self._series.items()):
                counts, total = series.read()
                family.add_metric([value], list(zip(self._shown_bounds, counts, strict=True)), total)
            yield family
