"""Durations counted in logarithmic buckets, twenty per decade, so that the counts of several minutes can be merged.

The database has the same buckets in its function `awa.latency_bucket`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeAlias

BucketCounts: TypeAlias = Mapping[int, int]  # durations per bucket number
BUCKETS_PER_DECADE = 20
PERCENTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}


def merge(histograms: Iterable[BucketCounts]) -> BucketCounts:
    """Return the sum of several histograms."""
    total: Counter[int] = Counter()
    for counts in histograms:
        total.update(counts)
    return total


def percentile(counts: BucketCounts, quantile: float) -> float | None:
    """Return the quantile (0 to 1) in seconds, to within 6 %; None if the histogram is empty."""
    rank, seen = quantile * sum(counts.values()), 0
    for bucket in sorted(counts):
        seen += counts[bucket]
        if seen >= rank:
            return float(10 ** ((max(bucket, 1) - 0.5) / BUCKETS_PER_DECADE) / 1000)
    return None


def percentiles(counts: BucketCounts) -> dict[str, float | None]:
    return {name: percentile(counts, quantile) for name, quantile in PERCENTILES.items()}
