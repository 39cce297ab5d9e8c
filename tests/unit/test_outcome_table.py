"""The table of outcomes covers every outcome of an attempt."""

import asyncio
from typing import get_args

import pytest

import awa_py as awa
from awa_py import State
from awa_py.observability.metrics import Metrics
from awa_py.worker.outcome_table import OUTCOMES
from awa_py.worker.outcomes import (
    Advanced,
    AttemptFailed,
    AttemptOutcome,
    Completed,
    Discarded,
    LeaseLost,
    QueueThrottled,
    Released,
    Snoozed,
    StopReason,
    outcome_of,
)


def outcome(end: object, stop: StopReason | None = None) -> AttemptOutcome:
    return outcome_of(end, kind="work", stop=stop, max_result_bytes=100, find_handler=lambda kind: None)


def is_span_error(end: object) -> bool:
    value = outcome(end)
    rule = OUTCOMES[type(value)]
    return rule.is_span_error is not None and rule.is_span_error(value)


def test_table_has_an_entry_for_every_outcome() -> None:
    assert set(OUTCOMES) == set(get_args(AttemptOutcome))


def test_counters_of_the_table_exist() -> None:
    metrics = Metrics()
    for rule in OUTCOMES.values():
        if rule.counter is not None:
            rule.counter(metrics).labels("default").inc()


def test_throttled_queues_are_written_before_released_jobs() -> None:
    types = list(OUTCOMES)
    assert types.index(QueueThrottled) < types.index(Released)


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (None, Completed),
        ("result", Completed),
        (object(), Discarded),
        (awa.Retry(), AttemptFailed),
        (ValueError(), AttemptFailed),
        (asyncio.CancelledError(), AttemptFailed),
        (awa.Snooze(1), Snoozed),
        (awa.Next("ship"), Advanced),
        (awa.Next("ship", {"data": object()}), Discarded),
        (awa.Throttled(), QueueThrottled),
        (awa.Cancel(), Discarded),
        (awa.Fail(), Discarded),
    ],
)
def test_end_of_a_handler_has_an_outcome(end: object, expected: type) -> None:
    assert type(outcome(end)) is expected


@pytest.mark.parametrize("error", [asyncio.CancelledError(), ValueError()])
def test_error_after_a_stop_request_has_the_outcome_of_the_stop(error: BaseException) -> None:
    assert outcome(error, StopReason.CANCELLED) == Discarded(state=State.CANCELLED, error="cancelled by user")
    assert outcome(error, StopReason.LEASE_LOST) == LeaseLost()
    assert outcome(error, StopReason.LEASE_EXPIRED) == outcome(error, StopReason.SHUTDOWN) == Released()


def test_result_after_a_stop_request_completes_the_job() -> None:
    assert outcome("result", StopReason.CANCELLED) == Completed(result='"result"')


def test_only_failures_are_span_errors() -> None:
    ends = [None, awa.Snooze(1), awa.Next("ship"), awa.Throttled(), awa.Cancel(), awa.Retry(), awa.Fail(), ValueError()]
    assert [is_span_error(end) for end in ends] == [False, False, False, False, False, True, True, True]
