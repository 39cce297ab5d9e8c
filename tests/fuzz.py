"""How many cases the fuzz tests try: the same few in each run; others and more with AWA_TEST_FUZZ=10 (`make fuzz`)."""

import os

from hypothesis import HealthCheck, settings

FACTOR = int(os.environ.get("AWA_TEST_FUZZ", "1"))


def cases(number: int) -> settings:
    """Return settings for a fuzz test with this number of cases. Fixtures are shared by all of them."""
    return settings(
        max_examples=number * FACTOR,
        derandomize=FACTOR == 1,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
