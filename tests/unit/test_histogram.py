"""The batch histogram agrees with prometheus-client's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Histogram as PrometheusHistogram

from awa_py.observability.histogram import Histogram
from awa_py.observability.metrics import JOB_BUCKETS_S

BOUNDS = (0.1, 1, 10)
VALUES = st.lists(st.one_of(st.floats(0, 20), st.sampled_from([0, 0.1, 1, 10, 1e9])), max_size=30)


def samples_of(collector: object) -> dict[tuple[str, str], float]:
    registry = CollectorRegistry()
    registry.register(collector)  # type: ignore[arg-type]
    return {
        (sample.name, str(sorted(sample.labels.items()))): sample.value
        for family in registry.collect()
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


@given(st.lists(VALUES, max_size=5))
def test_batch_histogram_agrees_with_prometheus_client(batches: list[list[float]]) -> None:
    ours = Histogram("waited_seconds", "…", BOUNDS)
    theirs = PrometheusHistogram("waited_seconds", "…", buckets=BOUNDS, registry=None)
    for batch in batches:
        for value in batch:
            theirs.observe(value)
        ours._series[""].observe_all(list(batch))
    assert samples_of(ours) == pytest.approx(samples_of(theirs))


def test_each_label_value_has_its_own_series() -> None:
    histogram = Histogram("waited_seconds", "…", BOUNDS, "queue")
    assert samples_of(histogram) == {}
    histogram.labels("email").observe(0.5)
    histogram.labels("email").observe_all([5.0, 0.01])
    histogram.labels("default").observe(100.0)
    samples = samples_of(histogram)
    assert samples["waited_seconds_count", "[('queue', 'email')]"] == 3
    assert samples["waited_seconds_sum", "[('queue', 'email')]"] == pytest.approx(5.51)
    assert samples["waited_seconds_bucket", "[('le', '1.0'), ('queue', 'email')]"] == 2
    assert samples["waited_seconds_bucket", "[('le', '10.0'), ('queue', 'default')]"] == 0
    assert samples["waited_seconds_bucket", "[('le', '+Inf'), ('queue', 'default')]"] == 1


def test_histogram_can_be_exposed_as_text() -> None:
    registry = CollectorRegistry()
    histogram = Histogram("waited_seconds", "…", JOB_BUCKETS_S)
    registry.register(histogram)
    histogram.observe(0.002)
    assert b'waited_seconds_bucket{le="0.005"} 1.0' in generate_latest(registry)
