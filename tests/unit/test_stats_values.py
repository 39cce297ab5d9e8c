"""How spreads are added up, and how figures are put into a few characters."""

import math
import random

import pytest
from awa_cli.output import approximate, sparkline

from awa_py.observability.latency_histogram import BUCKETS_PER_DECADE, merge, percentile, percentiles


def cell(seconds: float) -> int:
    return 0 if seconds <= 0.001 else math.ceil(BUCKETS_PER_DECADE * math.log10(seconds * 1000))


class TestPercentiles:  # F16
    @pytest.mark.parametrize("share", [0.5, 0.95, 0.99, 1.0])
    def test_they_are_right_to_within_6_percent(self, share: float) -> None:
        chance = random.Random(1)
        lengths = sorted(chance.lognormvariate(-2, 1.5) + 0.001 for _ in range(5000))
        cells = merge({cell(length): 1} for length in lengths)
        exact = lengths[math.ceil(share * len(lengths)) - 1]
        assert percentile(cells, share) == pytest.approx(exact, rel=0.06)

    def test_of_parts_they_are_those_of_the_whole(self) -> None:
        """Ninety short and ten long ones: the mean of both medians would be far off."""
        short, long = {cell(0.01): 90}, {cell(100): 10}
        assert percentile(merge([short, long]), 0.5) == percentile(short, 0.5)
        assert percentile(merge([short, long]), 0.95) == percentile(long, 0.5)

    def test_of_nothing_there_are_none(self) -> None:
        assert percentiles({}) == {"p50": None, "p95": None, "p99": None}

    def test_the_shortest_is_a_millisecond(self) -> None:
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
def test_a_lapse_has_few_characters(seconds: float, text: str) -> None:
    assert approximate(seconds) == text


def test_a_sparkline_is_as_high_as_the_largest() -> None:
    assert sparkline([0, 1, 4, 8]) == " ▂▅█"
    assert sparkline([0, 1, 4, 8], ascii_only=True) == " :+@"
    assert sparkline([]) == ""
    assert sparkline([0, 0]) == "  "
