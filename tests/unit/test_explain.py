"""Why a job is not running: each circumstance has its sentence."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from awa_py.model.job import Job, State
from awa_py.observability.explain import explain
from awa_py.store.jobs import JobConditions
from awa_py.text import count, relative_time, short_duration
from tests.support import OWNER

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
JOB = Job(
    id=7,
    kind="greet",
    queue="email",
    state=State.AVAILABLE,
    priority=2,
    attempt=0,
    max_attempts=25,
    args={},
    run_at=NOW,
    created_at=NOW,
)


def told(*, led: bool = True, circumstances: dict[str, Any] | None = None, **job: Any) -> str:
    """The sentences about a job that could run, but for what is given."""
    changed = replace(JOB, **job)
    usual: dict[str, Any] = {
        "paused": False,
        "paused_until": None,
        "throttled_until": None,
        "throttle_reason": None,
        "max_workers": None,
        "queue_running": 0,
        "rate_jobs": None,
        "rate_period": None,
        "owner": None,
        "owner_silent_s": None,
        "workers": 3,
        "workers_of_queue": 2,
        "workers_of_kind": 1,
        "ahead": 0,
        "key_running": 0,
        "key_holders": [],
        "earlier_id": None,
        "earlier_state": None,
    }
    about = JobConditions(
        id=changed.id,
        kind=changed.kind,
        queue=changed.queue,
        state=changed.state,
        run_at=changed.run_at,
        future=changed.run_at > NOW,
        due_s=(changed.run_at - NOW).total_seconds(),
        attempt=changed.attempt,
        max_attempts=changed.max_attempts,
        **(usual | (circumstances or {})),
    )
    return " ".join(explain(changed, about, led=led, now=NOW))


KEY: dict[str, Any] = {"concurrency_key": "k", "concurrency_limit": 2, "ordered": False}
ORDERED: dict[str, Any] = {"concurrency_key": "k", "concurrency_limit": 1, "ordered": True}
ERRORS = [{"attempt": 2, "at": "…", "error": "it broke"}]
LATER = NOW + timedelta(minutes=5)
BEFORE = NOW - timedelta(seconds=3)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "It is the next in line: it waits for a free slot of 1 worker that could run it."),
        ({"circumstances": {"ahead": 1}}, '1 job is ahead of it in its queue "email".'),
        ({"circumstances": {"ahead": 1200}}, "1,200 jobs are ahead of it"),
        ({"circumstances": {"workers": 0}}, "No worker is alive: start one with `awa worker`."),
        ({"circumstances": {"workers_of_queue": 0}}, 'No live worker serves its queue "email", out of 3.'),
        ({"circumstances": {"workers_of_kind": 0}}, 'No live worker of its queue "email" knows the kind "greet"'),
        ({"circumstances": {"paused": True}}, "is paused: `awa queue resume email` lets it go on."),
        ({"circumstances": {"paused": True, "paused_until": LATER}}, "is paused until 2026-05-01 12:05:00 UTC"),
        (
            {"circumstances": {"throttled_until": LATER, "throttle_reason": "429"}},
            'Its queue "email" is throttled until 2026-05-01 12:05:00 UTC (in 5m): 429.',
        ),
        ({"circumstances": {"throttled_until": LATER}}, "is throttled until 2026-05-01 12:05:00 UTC (in 5m)."),
        (
            {"circumstances": {"max_workers": 3, "queue_running": 3}},
            'Its queue "email" is full: 3 of 3 jobs are running.',
        ),
        ({"circumstances": {"max_workers": 1, "queue_running": 1}}, "is full: 1 of 1 job is running."),
        (
            {"circumstances": {"rate_jobs": 10, "rate_period": timedelta(minutes=1)}},
            'Its queue "email" begins at most 10 jobs in 1m. It is the next in line',
        ),
        (
            {**KEY, "circumstances": {"key_running": 2, "key_holders": [3, 5]}},
            'Its key "k" is at its limit: 2 of 2 jobs are running (jobs 3, 5).',
        ),
        (
            {**KEY, "concurrency_limit": 6, "circumstances": {"key_running": 6, "key_holders": [1, 2, 3, 4, 5]}},
            "6 of 6 jobs are running (jobs 1, 2, 3, 4, 5, …).",
        ),
        (
            {**ORDERED, "circumstances": {"key_running": 1, "key_holders": [3], "earlier_id": 5}},
            'Its key "k" is at its limit: 1 of 1 job is running (job 3).',
        ),
        (
            {**ORDERED, "circumstances": {"earlier_id": 5, "earlier_state": "retryable"}},
            'Its key "k" is ordered: job 5, which is retryable, has to end first.',
        ),
        ({**KEY, "circumstances": {"key_running": 1, "ahead": 4}}, '4 jobs of its key "k" are ahead of it.'),
        ({**KEY, "circumstances": {"key_running": 1}}, "It is the next in line"),
        ({"unique_key": "k"}, 'It holds the unique key "k"'),
        ({"deadline_at": LATER}, "where it has not completed by 2026-05-01 12:05:00 UTC (in 5m), it fails"),
        ({"state": State.SCHEDULED, "run_at": LATER}, "It is scheduled for 2026-05-01 12:05:00 UTC (in 5m)."),
        ({"state": State.SCHEDULED, "run_at": BEFORE}, "The leader makes it available within seconds."),
        ({"state": State.SCHEDULED, "run_at": LATER, "led": False}, "Nobody leads"),
        (
            {"state": State.RETRYABLE, "run_at": LATER, "attempt": 2, "errors": ERRORS},
            "Attempt 2 of 25 failed, and the next one is due 2026-05-01 12:05:00 UTC (in 5m). Its last error: it broke",
        ),
        ({"state": State.WAITING}, "It waits for a timer, a signal or its children"),
        (
            {
                "state": State.RUNNING,
                "attempt": 2,
                "worker_id": OWNER,
                "attempted_at": BEFORE,
                "circumstances": {"owner": "here:9", "owner_silent_s": 1.0},
            },
            f"It is running on worker {OWNER} (here:9) since 2026-05-01 11:59:57 UTC (3s ago): its 2nd attempt of 25.",
        ),
        (
            {"state": State.RUNNING, "worker_id": OWNER, "circumstances": {"owner": "a:1", "owner_silent_s": 130.0}},
            "That worker has been silent for 2m",
        ),
        ({"state": State.RUNNING, "worker_id": OWNER}, "That worker is not in the registry any more"),
        ({"state": State.RUNNING, "worker_id": OWNER, "cancel_requested_at": BEFORE}, "asked to cancel it 3s ago"),
        ({"state": State.COMPLETED, "attempt": 1, "finalized_at": BEFORE}, "(3s ago), in its 1st attempt."),
        (
            {"state": State.FAILED, "attempt": 25, "finalized_at": BEFORE, "errors": ERRORS},
            "after 25 of 25 attempts. Its last error: it broke `awa job retry 7` runs it again",
        ),
        ({"state": State.CANCELLED, "finalized_at": BEFORE}, "It was cancelled 2026-05-01 11:59:57 UTC"),
    ],
)
def test_each_circumstance_has_its_sentence(given: dict[str, Any], says: str) -> None:
    assert says in told(**given)


def test_a_job_that_cannot_run_is_not_called_the_next_in_line() -> None:
    assert "next in line" not in told(circumstances={"workers": 0})
    assert "next in line" not in told(circumstances={"paused": True})
    assert "next in line" not in told(circumstances={"throttled_until": LATER})
    assert "next in line" not in told(circumstances={"max_workers": 2, "queue_running": 2})
    assert "next in line" not in told(**KEY, circumstances={"key_running": 2, "key_holders": [3, 5]})
    assert "next in line" not in told(**ORDERED, circumstances={"earlier_id": 5, "earlier_state": "retryable"})


def test_a_limit_that_is_not_reached_is_not_worth_a_word() -> None:
    assert "full" not in told(circumstances={"max_workers": 3, "queue_running": 2})
    assert "limit" not in told(**KEY, circumstances={"key_running": 1, "key_holders": [3]})


@pytest.mark.parametrize(
    ("seconds", "says"),
    [(0, "now"), (3, "in 3s"), (-90, "90s ago"), (300, "in 5m"), (-7200, "2h ago"), (2e6, "in 23d")],
)
def test_relative_times(seconds: float, says: str) -> None:
    assert relative_time(timedelta(seconds=seconds)) == says


def test_rough_lengths_and_counts() -> None:
    assert [short_duration(timedelta(seconds=n)) for n in (0, 119, 120, 7199)] == ["0s", "119s", "2m", "119m"]
    assert [count(n, "job") for n in (0, 1, 2000)] == ["0 jobs", "1 job", "2,000 jobs"]
