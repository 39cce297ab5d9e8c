"""What a job's history consists of: its row, and what was noted beside it."""

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


def noted(event: str, at_s: float, *, lease: int, attempt: int, began_s: float | None = None) -> EventRow:
    began_at = None if began_s is None else after(began_s)
    return EventRow(after(at_s), event, lease, attempt, began_at, ANOTHER)


def told(events: list[Event]) -> list[tuple[float, str, int | None]]:
    return [((event.at - NOW).total_seconds(), event.event, event.attempt) for event in events]


class TestTheRowAlone:
    def test_a_new_job_was_enqueued(self) -> None:
        assert history(JOB, []) == [Event(at=NOW, event="enqueued")]

    def test_what_is_to_come_is_the_last(self) -> None:
        job = replace(JOB, state=State.SCHEDULED, run_at=after(60))
        assert told(history(job, [])) == [(0, "enqueued", None), (60, "due", None)]

    def test_a_finished_job_has_a_start_and_an_end(self) -> None:
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
        assert told(events) == [(0, "enqueued", None), (1, "started", 1), (3, "completed", 1)]
        assert [event.worker_id for event in events] == [None, OWNER, OWNER]

    @pytest.mark.parametrize("state", [State.FAILED, State.CANCELLED])
    def test_the_error_of_the_end_is_told_once(self, state: State) -> None:
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
        assert told(events) == [(0, "enqueued", None), (1, "error", 1), (2, "started", 2), (3, state, 2)]
        assert [event.detail for event in events] == [None, "first", None, "last"]

    @pytest.mark.parametrize("why", ["heartbeat stale: worker presumed dead", "worker gone: its session ended"])
    def test_a_rescue_is_called_by_its_name(self, why: str) -> None:
        job = replace(JOB, attempt=1, lease=1, errors=[error(90, 1, why)])
        assert told(history(job, []))[1] == (90, "rescued", 1)

    def test_an_attempt_that_is_taken_over_ends_before_the_next_begins(self) -> None:
        stale = error(90, 1, "heartbeat stale: worker presumed dead")
        job = replace(JOB, state=State.RUNNING, attempt=2, lease=2, attempted_at=after(90), errors=[stale])
        assert told(history(job, [])) == [(0, "enqueued", None), (90, "rescued", 1), (90, "started", 2)]

    def test_what_the_leader_says_of_a_job_that_nobody_knows_is_no_attempt(self) -> None:
        job = replace(JOB, errors=[error(5, 0, "no handler registered for kind: greet")])
        assert told(history(job, []))[1] == (5, "error", None)


class TestWithWhatWasNoted:
    def test_an_earlier_attempt_has_its_start_its_worker_and_its_error(self) -> None:
        job = replace(
            JOB, state=State.RUNNING, attempt=2, lease=2, attempted_at=after(9), run_at=after(8), errors=[error(3, 1)]
        )
        # The worker's time is a little off: that of the error is the database's own.
        events = history(job, [noted("retried", 3.02, lease=1, attempt=1, began_s=1.02)])
        assert told(events) == [
            (0, "enqueued", None),
            (1, "started", 1),
            (3, "retried", 1),
            (8, "due", None),
            (9, "started", 2),
        ]
        assert (events[2].worker_id, events[2].detail) == (ANOTHER, "boom")

    def test_a_start_is_told_once_however_often_it_was_noted(self) -> None:
        job = replace(JOB, attempt=1, lease=1)
        began = noted("started", 1, lease=1, attempt=1, began_s=1)
        ended = noted("released", 5, lease=1, attempt=1, began_s=1)
        expected = [(0, "enqueued", None), (1, "started", 1), (5, "released", 1)]
        assert told(history(job, [began, ended])) == expected
        assert told(history(job, [began, began, ended, ended])) == expected

    def test_no_attempt_begins_before_the_one_before_it_has_ended(self) -> None:
        """A worker's times are its own, and may be a little off."""
        job = replace(JOB, attempt=2, lease=2, errors=[error(3, 1), error(5, 2)])
        events = history(
            job,
            [
                noted("retried", 3, lease=1, attempt=1, began_s=-0.2),
                noted("retried", 5, lease=2, attempt=2, began_s=2.9),
            ],
        )
        assert told(events) == [
            (0, "enqueued", None),
            (0, "started", 1),
            (3, "retried", 1),
            (3, "started", 2),
            (5, "retried", 2),
        ]

    def test_an_attempt_begins_before_it_ends_however_late_it_was_noted(self) -> None:
        """Of the database's times and the worker's, which come late where that was slow to write them."""
        job = replace(JOB, attempt=2, lease=2, errors=[error(3, 1), error(3.01, 2)])
        late = [
            noted("retried", 3.5, lease=1, attempt=1, began_s=1.5),
            noted("retried", 3.51, lease=2, attempt=2, began_s=3.501),
        ]
        expected = [
            (0, "enqueued", None),
            (1, "started", 1),
            (3, "retried", 1),
            (3.001, "started", 2),
            (3.01, "retried", 2),
        ]
        assert told(history(job, late)) == expected

    def test_and_where_it_is_not_known_when_either_was(self) -> None:
        job = replace(JOB, attempt=1, lease=2, errors=[error(3, 1)])
        events = history(
            job,
            [
                noted("retried", 3, lease=1, attempt=1, began_s=1),
                noted("snoozed", 2.9, lease=2, attempt=2, began_s=2.8),
            ],
        )
        assert [(event.event, event.attempt) for event in events[-2:]] == [("started", 2), ("snoozed", 2)]

    def test_of_the_last_attempt_the_row_knows_better(self) -> None:
        job = replace(
            JOB, state=State.CANCELLED, attempt=1, lease=1, attempted_at=after(1), finalized_at=after(2), run_at=NOW
        )
        events = history(job, [noted("snoozed", 2, lease=1, attempt=1, began_s=1)])
        assert told(events) == [(0, "enqueued", None), (1, "started", 1), (2, "cancelled", 1)]

    def test_a_job_that_ended_while_it_waited_keeps_what_was_noted(self) -> None:
        job = replace(
            JOB,
            state=State.CANCELLED,
            attempt=1,
            lease=1,
            finalized_at=after(5),
            errors=[error(2, 1), error(5, 1, "cancelled by user")],
        )
        events = history(job, [noted("retried", 2, lease=1, attempt=1, began_s=1)])
        assert told(events) == [(0, "enqueued", None), (1, "started", 1), (2, "retried", 1), (5, "cancelled", 1)]

    def test_errors_of_the_same_number_go_to_the_nearest(self) -> None:
        """After an operator's retry attempts are counted anew."""
        job = replace(JOB, attempt=1, lease=2, errors=[error(2, 1, "before"), error(9, 1, "after")])
        events = history(
            job,
            [
                noted("retried", 9, lease=2, attempt=1, began_s=8),
                noted("failed", 2, lease=1, attempt=1, began_s=1),
                noted("requeued", 5, lease=1, attempt=0),
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

    def test_what_the_errors_have_forgotten_was_noted(self) -> None:
        """The last 32 are kept: of an older attempt there is still what the worker noted."""
        job = replace(JOB, attempt=40, lease=40, errors=[error(n, n) for n in range(9, 41)])
        events = history(job, [noted("retried", 1, lease=1, attempt=1, began_s=0.5)])
        assert told(events)[1:3] == [(0.5, "started", 1), (1, "retried", 1)]
