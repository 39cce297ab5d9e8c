"""A job's history, built from its row and its recorded events."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from awa_py.model.job import Job, State
from awa_py.observability.history import Event, history
from awa_py.store.events import EventRow
from tests.support import OWNER

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
ANOTHER = UUID(int=7)
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


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def error(at_s: float, attempt: int, text: str = "boom") -> dict[str, Any]:
    return {"at": after(at_s).isoformat(), "attempt": attempt, "error": text}


def recorded(event: str, at_s: float, *, lease: int, attempt: int, began_s: float | None = None) -> EventRow:
    began_at = None if began_s is None else after(began_s)
    return EventRow(at=after(at_s), event=event, lease=lease, attempt=attempt, began_at=began_at, worker_id=ANOTHER)


def summary(events: list[Event]) -> list[tuple[float, str, int | None]]:
    return [((event.at - NOW).total_seconds(), event.event, event.attempt) for event in events]


class TestRowAlone:
    def test_new_job_has_only_its_enqueueing(self) -> None:
        assert history(JOB, []) == [Event(at=NOW, event="enqueued")]

    def test_future_due_time_comes_last(self) -> None:
        job = replace(JOB, state=State.SCHEDULED, run_at=after(60))
        assert summary(history(job, [])) == [(0, "enqueued", None), (60, "due", None)]

    def test_finished_job_has_a_start_and_an_end(self) -> None:
        job = replace(
            JOB,
            state=State.COMPLETED,
            attempt=1,
            lease=1,
            attempted_at=after(1),
            finalized_at=after(3),
            worker_id=OWNER,
        )
        events = history(job, [])
        assert summary(events) == [(0, "enqueued", None), (1, "started", 1), (3, "completed", 1)]
        assert [event.worker_id for event in events] == [None, OWNER, OWNER]

    @pytest.mark.parametrize("state", [State.FAILED, State.CANCELLED])
    def test_final_error_appears_once(self, state: State) -> None:
        job = replace(
            JOB,
            state=state,
            attempt=2,
            lease=2,
            attempted_at=after(2),
            finalized_at=after(3),
            errors=[error(1, 1, "first"), error(3, 2, "last")],
        )
        events = history(job, [])
        assert summary(events) == [(0, "enqueued", None), (1, "error", 1), (2, "started", 2), (3, state, 2)]
        assert [event.detail for event in events] == [None, "first", None, "last"]

    def test_rescue_error_becomes_a_rescued_event(self) -> None:
        job = replace(JOB, attempt=1, lease=1, errors=[error(90, 1) | {"rescued": True}])
        assert summary(history(job, []))[1] == (90, "rescued", 1)

    def test_rescue_precedes_a_start_at_the_same_time(self) -> None:
        stale = error(90, 1, "heartbeat stale: worker presumed dead") | {"rescued": True}
        job = replace(JOB, state=State.RUNNING, attempt=2, lease=2, attempted_at=after(90), errors=[stale])
        assert summary(history(job, [])) == [(0, "enqueued", None), (90, "rescued", 1), (90, "started", 2)]

    def test_error_of_attempt_zero_has_no_attempt(self) -> None:
        job = replace(JOB, errors=[error(5, 0, "no handler registered for kind: greet")])
        assert summary(history(job, []))[1] == (5, "error", None)


class TestRecordedEvents:
    def test_earlier_attempt_has_its_start_worker_and_error(self) -> None:
        job = replace(
            JOB, state=State.RUNNING, attempt=2, lease=2, attempted_at=after(9), run_at=after(8), errors=[error(3, 1)]
        )
        # The worker's clock is 20 ms ahead; the error has the database's time.
        events = history(job, [recorded("retried", 3.02, lease=1, attempt=1, began_s=1.02)])
        assert summary(events) == [
            (0, "enqueued", None),
            (1, "started", 1),
            (3, "retried", 1),
            (8, "due", None),
            (9, "started", 2),
        ]
        assert (events[2].worker_id, events[2].detail) == (ANOTHER, "boom")

    def test_duplicate_events_appear_once(self) -> None:
        job = replace(JOB, attempt=1, lease=1)
        began = recorded("started", 1, lease=1, attempt=1, began_s=1)
        ended = recorded("released", 5, lease=1, attempt=1, began_s=1)
        expected = [(0, "enqueued", None), (1, "started", 1), (5, "released", 1)]
        assert summary(history(job, [began, ended])) == expected
        assert summary(history(job, [began, began, ended, ended])) == expected

    def test_attempt_starts_no_earlier_than_the_previous_one_ended(self) -> None:
        """Start times come from the worker's clock, which may be off."""
        job = replace(JOB, attempt=2, lease=2, errors=[error(3, 1), error(5, 2)])
        events = history(
            job,
            [
                recorded("retried", 3, lease=1, attempt=1, began_s=-0.2),
                recorded("retried", 5, lease=2, attempt=2, began_s=2.9),
            ],
        )
        assert summary(events) == [
            (0, "enqueued", None),
            (0, "started", 1),
            (3, "retried", 1),
            (3, "started", 2),
            (5, "retried", 2),
        ]

    def test_attempt_starts_before_it_ends_if_events_were_written_late(self) -> None:
        """Errors have the database's time; a slow write shifts the worker's times."""
        job = replace(JOB, attempt=2, lease=2, errors=[error(3, 1), error(3.01, 2)])
        late = [
            recorded("retried", 3.5, lease=1, attempt=1, began_s=1.5),
            recorded("retried", 3.51, lease=2, attempt=2, began_s=3.501),
        ]
        expected = [
            (0, "enqueued", None),
            (1, "started", 1),
            (3, "retried", 1),
            (3.001, "started", 2),
            (3.01, "retried", 2),
        ]
        assert summary(history(job, late)) == expected

    def test_attempt_without_error_starts_before_it_ends(self) -> None:
        job = replace(JOB, attempt=1, lease=2, errors=[error(3, 1)])
        events = history(
            job,
            [
                recorded("retried", 3, lease=1, attempt=1, began_s=1),
                recorded("snoozed", 2.9, lease=2, attempt=2, began_s=2.8),
            ],
        )
        assert [(event.event, event.attempt) for event in events[-2:]] == [("started", 2), ("snoozed", 2)]

    def test_row_overrides_events_of_the_last_attempt(self) -> None:
        job = replace(
            JOB, state=State.CANCELLED, attempt=1, lease=1, attempted_at=after(1), finalized_at=after(2), run_at=NOW
        )
        events = history(job, [recorded("snoozed", 2, lease=1, attempt=1, began_s=1)])
        assert summary(events) == [(0, "enqueued", None), (1, "started", 1), (2, "cancelled", 1)]

    def test_job_cancelled_while_waiting_keeps_its_events(self) -> None:
        job = replace(
            JOB,
            state=State.CANCELLED,
            attempt=1,
            lease=1,
            finalized_at=after(5),
            errors=[error(2, 1), error(5, 1, "cancelled by user")],
        )
        events = history(job, [recorded("retried", 2, lease=1, attempt=1, began_s=1)])
        assert summary(events) == [(0, "enqueued", None), (1, "started", 1), (2, "retried", 1), (5, "cancelled", 1)]

    def test_errors_with_equal_attempt_numbers_match_the_nearest_event(self) -> None:
        """`awa job retry` restarts the count of attempts."""
        job = replace(JOB, attempt=1, lease=2, errors=[error(2, 1, "before"), error(9, 1, "after")])
        events = history(
            job,
            [
                recorded("retried", 9, lease=2, attempt=1, began_s=8),
                recorded("failed", 2, lease=1, attempt=1, began_s=1),
                recorded("requeued", 5, lease=1, attempt=0),
            ],
        )
        assert [(event.event, event.detail) for event in events] == [
            ("enqueued", None),
            ("started", None),
            ("failed", "before"),
            ("requeued", None),
            ("started", None),
            ("retried", "after"),
        ]

    def test_attempt_without_a_kept_error_keeps_its_event(self) -> None:
        """A job keeps its last 32 errors; events of older attempts remain."""
        job = replace(JOB, attempt=40, lease=40, errors=[error(n, n) for n in range(9, 41)])
        events = history(job, [recorded("retried", 1, lease=1, attempt=1, began_s=0.5)])
        assert summary(events)[1:3] == [(0.5, "started", 1), (1, "retried", 1)]
