"""The split of max_workers into shares."""

import itertools

import pytest

from awa_py.maintenance.rebalance import split


@pytest.mark.parametrize(
    ("total", "capacities", "parts"),
    [
        (10, [100, 100, 100], [4, 3, 3]),
        (9, [100, 100, 100], [3, 3, 3]),
        (2, [100, 100, 100], [1, 1, 0]),
        (10, [100], [10]),
        (10, [], []),
        (10, [2, 100, 100], [2, 4, 4]),
        (10, [1, 2, 100], [1, 2, 7]),
        (11, [5, 2, 100], [5, 2, 4]),
        (10, [3, 3], [3, 3]),
        (10, [0, 100], [0, 10]),
    ],
)
def test_shares_are_equal_within_the_capacities(  # F6
    total: int, capacities: list[int], parts: list[int]
) -> None:
    assert split(total, capacities) == parts


def test_shares_use_the_whole_total_and_never_exceed_it() -> None:  # F6
    for total, *capacities in itertools.product(range(1, 12), range(5), range(5), range(8)):
        parts = split(total, capacities)
        assert sum(parts) == min(total, sum(capacities))
        assert all(0 <= part <= capacity for part, capacity in zip(parts, capacities, strict=True))
        # Shares differ by at most one (the remainder), unless a share is limited by its capacity.
        assert all(part >= max(parts) - 1 for part, capacity in zip(parts, capacities, strict=True) if part < capacity)
