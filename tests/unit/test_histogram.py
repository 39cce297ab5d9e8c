"""A histogram by the batch says what one by one would have said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Histogram as OneByOne

from awa_py.observability.histogram import Histogram
from awa_py.observability.metrics import JOB_S

BOUNDS = (0.1, 1, 10)
VALUES = st.lists(st.one_of(st.floats(0, 20), st.sampled_from([0, 0.1, 1, 10, 1e9])), max_size=30)


def shown(collector: object) -> dict[tuple[str, str], float]:
    registry = CollectorRegistry()
    registry.register(collector)  # type: ignore[arg-type]
    return {
        (sample.name, str(sorted(sample.labels.items()))): sample.value
        for family in registry.collect()
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


@given(st.lists(VALUES, max_size=5))
def test_it_says_what_prometheus_client_says(batches: list[list[float]]) -> None:
    ours = Histogram("waited_seconds", "…", BOUNDS)
    theirs = OneByOne("waited_seconds", "…", buckets=BOUNDS, registry=None)
    for batch in batches:
        for value in batch:
            theirs.observe(value)
        ours._series[""].observe_all(list(batch))
    assert shown(ours) == pytest.approx(shown(theirs))


def test_labels_have_series_of_their_own() -> None:
    histogram = Histogram("waited_seconds", "…", BOUNDS, "queue")
    assert shown(histogram) == {}
    histogram.labels("email").observe(0.5)
    histogram.labels("email").observe_all([5.0, 0.01])
    histogram.labels("default").observe(100.0)
    said = shown(histogram)
    assert said["waited_seconds_count", "[('queue', 'email')]"] == 3
    assert said["waited_seconds_sum", "[('queue', 'email')]"] == pytest.approx(5.51)
    assert said["waited_seconds_bucket", "[('le', '1.0'), ('queue', 'email')]"] == 2
    assert said["waited_seconds_bucket", "[('le', '10.0'), ('queue', 'default')]"] == 0
    assert said["waited_seconds_bucket", "[('le', '+Inf'), ('queue', 'default')]"] == 1


def test_it_can_be_written_in_prometheus_format() -> None:
    registry = CollectorRegistry()
    histogram = Histogram("waited_seconds", "…", JOB_S)
    registry.register(histogram)
    histogram.observe(0.002)
    assert b'waited_seconds_bucket{le="0.005"} 1.0' in generate_latest(registry)
