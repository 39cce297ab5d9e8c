"""Sentences of `awa job explain`."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from awa_py.model.job import Job, State
from awa_py.observability.explain import explain
from awa_py.store.durable_jobs import JobWait
from awa_py.store.jobs import JobConditions
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


def explained(
    *,
    has_leader: bool = True,
    wait: JobWait | None = None,
    circumstances: dict[str, Any] | None = None,
    **job: Any,
) -> str:
    """Return the sentences about a job that could run, except for the given changes."""
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
    return " ".join(explain(changed, about, wait=wait, has_leader=has_leader, now=NOW))


KEY: dict[str, Any] = {"concurrency_key": "k", "concurrency_limit": 2, "ordered": False}
ORDERED: dict[str, Any] = {"concurrency_key": "k", "concurrency_limit": 1, "ordered": True}
ERRORS = [{"attempt": 2, "at": "…", "error": "it broke"}]
LATER = NOW + timedelta(minutes=5)
BEFORE = NOW - timedelta(seconds=3)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "It is next in line: it is waiting for a free slot on 1 worker that can run it."),
        ({"circumstances": {"ahead": 1}}, '1 job is ahead of it in its queue "email".'),
        ({"circumstances": {"ahead": 1200}}, "1,200 jobs are ahead of it"),
        ({"circumstances": {"workers": 0}}, "No worker is alive: start one with `awa worker`."),
        (
            {"circumstances": {"workers_of_queue": 0}},
            'No live worker serves its queue "email" (3 live workers checked).',
        ),
        (
            {"circumstances": {"workers_of_kind": 0}},
            'No live worker of its queue "email" has a handler for kind "greet" (2 live workers checked).',
        ),
        ({"circumstances": {"paused": True}}, "is paused. To resume it: `awa queue resume email`."),
        ({"circumstances": {"paused": True, "paused_until": LATER}}, "is paused until 2026-05-01 12:05:00 UTC"),
        (
            {"circumstances": {"throttled_until": LATER, "throttle_reason": "429"}},
            'Its queue "email" is throttled until 2026-05-01 12:05:00 UTC (in 5m): 429.',
        ),
        ({"circumstances": {"throttled_until": LATER}}, "is throttled until 2026-05-01 12:05:00 UTC (in 5m)."),
        (
            {"circumstances": {"max_workers": 3, "queue_running": 3}},
            'Its queue "email" is at its max_workers: 3 of 3 jobs are running.',
        ),
        ({"circumstances": {"max_workers": 1, "queue_running": 1}}, "is at its max_workers: 1 of 1 job is running."),
        (
            {"circumstances": {"rate_jobs": 10, "rate_period": timedelta(minutes=1)}},
            'Its queue "email" starts at most 10 jobs in 1m. It is next in line',
        ),
        (
            {**KEY, "circumstances": {"key_running": 2, "key_holders": [3, 5]}},
            'Its concurrency key "k" is at its limit: 2 of 2 jobs are running (jobs 3, 5).',
        ),
        (
            {**KEY, "concurrency_limit": 6, "circumstances": {"key_running": 6, "key_holders": [1, 2, 3, 4, 5]}},
            "6 of 6 jobs are running (jobs 1, 2, 3, 4, 5, …).",
        ),
        (
            {**ORDERED, "circumstances": {"key_running": 1, "key_holders": [3], "earlier_id": 5}},
            'Its concurrency key "k" is at its limit: 1 of 1 job is running (job 3).',
        ),
        (
            {**ORDERED, "circumstances": {"earlier_id": 5, "earlier_state": "retryable"}},
            'Its concurrency key "k" is ordered: job 5 (retryable) must end first.',
        ),
        (
            {**KEY, "circumstances": {"key_running": 1, "ahead": 4}},
            '4 jobs with its concurrency key "k" are ahead of it.',
        ),
        ({**KEY, "circumstances": {"key_running": 1}}, "It is next in line"),
        ({"unique_key": "k"}, 'It holds the unique key "k"'),
        ({"deadline_at": LATER}, "It fails if it has not completed by its deadline, 2026-05-01 12:05:00 UTC (in 5m)."),
        ({"state": State.SCHEDULED, "run_at": LATER}, "It is scheduled for 2026-05-01 12:05:00 UTC (in 5m)."),
        ({"state": State.SCHEDULED, "run_at": BEFORE}, "The leader will make it available within seconds."),
        ({"state": State.SCHEDULED, "run_at": LATER, "has_leader": False}, "There is no leader"),
        (
            {"state": State.RETRYABLE, "run_at": LATER, "attempt": 2, "errors": ERRORS},
            "Attempt 2 of 25 failed. The next one is due 2026-05-01 12:05:00 UTC (in 5m). Its last error: it broke",
        ),
        ({"state": State.WAITING}, "It waited for a timer, a signal or its children a moment ago."),
        (
            {"state": State.WAITING, "wait": JobWait(since=BEFORE, until=LATER, signals=["approved"])},
            'It waits for the signal "approved" since 2026-05-01 11:59:57 UTC (3s ago), until 2026-05-01 12:05:00 UTC '
            "(in 5m). It occupies no slot. To send the signal: `awa job signal 7 approved`.",
        ),
        (
            {"state": State.WAITING, "wait": JobWait(since=BEFORE, until=None, signals=["a b", "c"])},
            'It waits for the signal "a b" or the signal "c" since 2026-05-01 11:59:57 UTC (3s ago). It occupies no '
            "slot. To send the signal: `awa job signal 7 'a b'`.",
        ),
        (
            {"state": State.WAITING, "wait": JobWait(since=BEFORE, until=LATER)},
            "It waits since 2026-05-01 11:59:57 UTC (3s ago), until 2026-05-01 12:05:00 UTC (in 5m).",
        ),
        (
            {"state": State.WAITING, "wait": JobWait(since=None, until=LATER)},
            "It waits until 2026-05-01 12:05:00 UTC (in 5m). It occupies no slot.",
        ),
        (
            {"state": State.WAITING, "wait": JobWait(since=None, until=LATER), "has_leader": False},
            "There is no leader, so it does not go on when the time has come: start `awa worker`",
        ),
        (
            {
                "state": State.WAITING,
                "wait": JobWait(since=BEFORE, until=None, children=20, unfinished=3, unfinished_ids=[4, 5, 6]),
            },
            "It waits for 3 of 20 children (jobs 4, 5, 6) since 2026-05-01 11:59:57 UTC",
        ),
        (
            {
                "state": State.WAITING,
                "wait": JobWait(since=None, until=None, children=10_000, unfinished=9_000, unfinished_ids=[4, 5]),
            },
            "It waits for 9,000 of 10,000 children (jobs 4, 5, …).",
        ),
        (
            {"state": State.WAITING, "wait": JobWait(since=None, until=None, children=1)},
            "It waits for 0 of 1 child. It occupies no slot. These children have ended: the leader will make it",
        ),
        (
            {
                "state": State.RUNNING,
                "attempt": 2,
                "worker_id": OWNER,
                "attempted_at": BEFORE,
                "circumstances": {"owner": "here:9", "owner_silent_s": 1.0},
            },
            f"It is running on worker {OWNER} (here:9), started 2026-05-01 11:59:57 UTC (3s ago): attempt 2 of 25.",
        ),
        (
            {"state": State.RUNNING, "worker_id": OWNER, "circumstances": {"owner": "a:1", "owner_silent_s": 130.0}},
            "That worker has sent no heartbeat for 2m",
        ),
        ({"state": State.RUNNING, "worker_id": OWNER}, "That worker is no longer in the list of workers"),
        (
            {"state": State.RUNNING, "worker_id": OWNER, "cancel_requested_at": BEFORE},
            "Its cancellation was requested 3s ago.",
        ),
        ({"state": State.COMPLETED, "attempt": 1, "finalized_at": BEFORE}, "(3s ago), on its 1st attempt."),
        (
            {"state": State.FAILED, "attempt": 25, "finalized_at": BEFORE, "errors": ERRORS},
            "after 25 of 25 attempts. Its last error: it broke To run it again with all its attempts: `awa job",
        ),
        ({"state": State.CANCELLED, "finalized_at": BEFORE}, "It was cancelled 2026-05-01 11:59:57 UTC"),
    ],
)
def test_each_circumstance_has_a_sentence(given: dict[str, Any], expected: str) -> None:
    assert expected in explained(**given)


def test_job_that_cannot_run_is_not_next_in_line() -> None:
    assert "next in line" not in explained(circumstances={"workers": 0})
    assert "next in line" not in explained(circumstances={"paused": True})
    assert "next in line" not in explained(circumstances={"throttled_until": LATER})
    assert "next in line" not in explained(circumstances={"max_workers": 2, "queue_running": 2})
    assert "next in line" not in explained(**KEY, circumstances={"key_running": 2, "key_holders": [3, 5]})
    assert "next in line" not in explained(**ORDERED, circumstances={"earlier_id": 5, "earlier_state": "retryable"})


def test_limit_that_is_not_reached_is_not_mentioned() -> None:
    assert "max_workers" not in explained(circumstances={"max_workers": 3, "queue_running": 2})
    assert "limit" not in explained(**KEY, circumstances={"key_running": 1, "key_holders": [3]})
