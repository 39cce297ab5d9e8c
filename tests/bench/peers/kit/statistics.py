"""Statistics of start times, computed the same way for each contender."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile of sorted values."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def latencies(acknowledged_ns: dict[int, int], started_ns: dict[int, int]) -> dict[str, Any]:
    """Return percentiles of the time from acknowledgement to start. It is negative if the worker was faster."""
    waits = sorted((started_ns[n] - acknowledged_ns[n]) / 1e6 for n in acknowledged_ns if n in started_ns)
    if not waits:
        return {"measured": 0}
    return {
        "measured": len(waits),
        "p50_ms": percentile(waits, 0.50),
        "p95_ms": percentile(waits, 0.95),
        "p99_ms": percentile(waits, 0.99),
        "max_ms": waits[-1],
    }


def thirds(starts_ns: Sequence[int]) -> list[float]:
    """Return the rate of each third of the handlers' starts in jobs/s."""
    ordered = sorted(starts_ns)
    cuts = [0, len(ordered) // 3, 2 * len(ordered) // 3, len(ordered) - 1]
    return [
        (last - first) / ((ordered[last] - ordered[first]) / 1e9)
        for first, last in pairwise(cuts)
        if ordered[last] > ordered[first]
    ]
