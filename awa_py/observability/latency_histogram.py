"""How lengths of time are spread: so many in each cell, twenty cells a decade. Such counts can be added up.

The counterpart of the database's function `awa.latency_bucket`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeAlias

BucketCounts: TypeAlias = Mapping[int, int]  # how many lengths there are in each cell
BUCKETS_PER_DECADE = 20
PERCENTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}


def merge(cells: Iterable[BucketCounts]) -> BucketCounts:
    total: Counter[int] = Counter()
    for each in cells:
        total.update(each)
    return total


def percentile(cells: BucketCounts, share: float) -> float | None:
    """The seconds that a share of the lengths did not exceed, to within 6 %; None: there are none."""
    wanted, upto = share * sum(cells.values()), 0
    for cell in sorted(cells):
        upto += cells[cell]
        if upto >= wanted:
            return float(10 ** ((max(cell, 1) - 0.5) / BUCKETS_PER_DECADE) / 1000)
    return None


def percentiles(cells: BucketCounts) -> dict[str, float | None]:
    return {name: percentile(cells, share) for name, share in PERCENTILES.items()}
