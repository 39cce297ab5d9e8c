"""Percentiles of merged histograms, and short forms of durations and rates."""

import math
import random

import pytest
from awa_cli.output import approximate, sparkline

from awa_py.observability.latency_histogram import BUCKETS_PER_DECADE, merge, percentile, percentiles


def bucket(seconds: float) -> int:
    return 0 if seconds <= 0.001 else math.ceil(BUCKETS_PER_DECADE * math.log10(seconds * 1000))


class TestPercentiles:  # F16
    @pytest.mark.parametrize("share", [0.5, 0.95, 0.99, 1.0])
    def test_percentile_is_accurate_to_within_6_percent(self, share: float) -> None:
        rng = random.Random(1)
        durations_s = sorted(rng.lognormvariate(-2, 1.5) + 0.001 for _ in range(5000))
        counts = merge({bucket(duration_s): 1} for duration_s in durations_s)
        exact = durations_s[math.ceil(share * len(durations_s)) - 1]
        assert percentile(counts, share) == pytest.approx(exact, rel=0.06)

    def test_percentile_of_merged_histograms_is_that_of_all_values(self) -> None:
        """With 90 short and 10 long durations, the mean of both medians would be far off."""
        short, long = {bucket(0.01): 90}, {bucket(100): 10}
        assert percentile(merge([short, long]), 0.5) == percentile(short, 0.5)
        assert percentile(merge([short, long]), 0.95) == percentile(long, 0.5)

    def test_percentiles_of_no_values_are_none(self) -> None:
        assert percentiles({}) == {"p50": None, "p95": None, "p99": None}

    def test_shortest_duration_is_a_millisecond(self) -> None:
        assert percentile({0: 5}, 0.5) == pytest.approx(0.001, rel=0.06)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0µs"),
        (0.00085, "850µs"),
        (0.0053, "5.3ms"),
        (0.0123, "12ms"),
        (0.9994, "999ms"),
        (0.9999, "1s"),
        (1.234, "1.23s"),
        (95, "95s"),
        (100, "1.67m"),
        (5400, "90m"),
        (6000, "1.67h"),
        (86_400 * 5, "5d"),
    ],
)
def test_approximate_has_at_most_five_characters(seconds: float, text: str) -> None:
    assert approximate(seconds) == text


def test_sparkline_is_scaled_to_the_largest_value() -> None:
    assert sparkline([0, 1, 4, 8]) == " ▂▅█"
    assert sparkline([0, 1, 4, 8], ascii_only=True) == " :+@"
    assert sparkline([]) == ""
    assert sparkline([0, 0]) == "  "
