"""The events, the summary and the output of `awa demo`, without a database."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from awa_cli.demo.command import summarize
from awa_cli.demo.display import LineDisplay, QueueRate, clock
from awa_cli.demo.snapshot import ChangeDetector, Severity, Snapshot

from awa_py.model.job import Job, State
from awa_py.store.election import Leader
from awa_py.store.jobs import JobCounts
from awa_py.store.schedules import ScheduleRow
from awa_py.store.workers import WorkerRow

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
WORKER = WorkerRow(
    id=uuid4(),
    label=None,
    hostname="here",
    pid=7,
    version="1",
    queues=["mail"],
    limits=[1],
    kinds=["send_receipt"],
    concurrency=1,
    quiet=False,
    stopping=False,
    started_at=NOW,
    heartbeat_at=NOW,
    silent_s=0.1,
    alive=True,
    locked_on=None,
    running=1,
    slots={},
)
JOB = Job(
    id=12,
    kind="send_receipt",
    queue="mail",
    state=State.RUNNING,
    priority=2,
    attempt=1,
    max_attempts=5,
    args={},
    run_at=NOW,
    created_at=NOW,
    worker_id=WORKER.id,
)
RATES = ScheduleRow(
    name="rates",
    expression="* * * * *",
    timezone="UTC",
    kind="fetch_rates",
    args={},
    options={},
    misfire="one",
    paused=False,
    enabled=True,
    last_error=None,
    effective_from=NOW,
    last_enqueued_at=None,
    next_at=NOW,
    created_at=NOW,
    updated_at=NOW,
    version=None,
    replaced_versions=[],
)


def snapshot(*jobs: Job, at_s: float = 1.0, completed: int = 0, **rest: Any) -> Snapshot:
    given: dict[str, Any] = {"workers": [], "leader": None, "schedules": [], "queues": []}
    counts = JobCounts(by_state={State.COMPLETED: completed}, completed=completed, dead=0)
    return Snapshot(at_s=at_s, counts=counts, jobs={job.id: job for job in jobs}, **given | rest)


def error(text: str, attempt: int = 1) -> dict[str, Any]:
    return {"attempt": attempt, "at": NOW.isoformat(), "error": text}


def texts(detector: ChangeDetector, snapshot: Snapshot) -> list[str]:
    return [event.text for event in detector.detect(snapshot)]


def test_failure_retry_and_success_of_a_job_are_one_event_each() -> None:
    detector = ChangeDetector()
    assert texts(detector, snapshot(JOB, workers=[WORKER])) == ["worker pid 7 joined"]
    failed = replace(JOB, state=State.RETRYABLE, errors=[error("Busy: later")], run_at=NOW + timedelta(seconds=1))
    assert texts(detector, snapshot(failed)) == ["send_receipt #12 failed: Busy: later; retry in 1 s"]
    again = replace(failed, state=State.RUNNING, attempt=2)
    assert texts(detector, snapshot(again)) == []
    done = replace(again, state=State.COMPLETED)
    assert texts(detector, snapshot(done)) == ["send_receipt #12 completed on worker pid 7 on its 2nd attempt"]
    assert detector.counts == {"retried": 1}


def test_rescued_job_is_not_reported_as_failed() -> None:
    detector = ChangeDetector()
    stale = replace(JOB, state=State.RETRYABLE, errors=[error("worker gone: its session ended") | {"rescued": True}])
    (event,) = detector.detect(snapshot(stale))
    assert (event.severity, event.text) == (
        Severity.GOOD,
        "send_receipt #12 was rescued: worker gone: its session ended",
    )
    assert detector.counts == {"rescued": 1}


def test_job_without_attempts_left_is_reported_as_failed_permanently() -> None:
    dead = replace(JOB, state=State.FAILED, errors=[error("Busy: later", 5)])
    assert texts(ChangeDetector(), snapshot(dead)) == ["send_receipt #12 failed permanently: Busy: later"]


def test_fired_schedule_and_new_leader_are_reported_once() -> None:
    detector = ChangeDetector()
    leader = Leader(worker_id=WORKER.id, hostname="here", pid=7, epoch=3, elected_at=NOW, backend_pid=8)
    fired = replace(RATES, last_enqueued_at=NOW)
    assert texts(detector, snapshot(schedules=[RATES])) == []
    assert texts(detector, snapshot(schedules=[fired], leader=leader)) == [
        "worker pid 7 was elected leader, epoch 3",
        "schedule rates fired: fetch_rates enqueued",
    ]
    assert texts(detector, snapshot(schedules=[fired], leader=leader)) == []
    assert detector.counts == {"fired": 1}


@pytest.mark.parametrize(
    ("at_s", "completed", "counts", "missing"),
    [
        (2.0, 0, {}, None),
        (8.0, 0, {}, "no job was completed in 8 s"),
        (8.0, 1, {}, None),
        (60.0, 1, {"retried": 1, "rescued": 1, "fired": 1}, None),
        (60.0, 1, {"retried": 1}, "no schedule fired, no job was rescued in 60 s"),
    ],
)
def test_summary_names_overdue_events(at_s: float, completed: int, counts: dict[str, int], missing: str | None) -> None:
    detector = ChangeDetector()
    detector.counts.update(counts)
    assert summarize(snapshot(at_s=at_s, completed=completed), detector, first_kill_s=1.0).missing == missing


def test_rescue_is_not_overdue_if_no_worker_was_killed() -> None:
    detector = ChangeDetector()
    detector.counts.update(retried=1, fired=1)
    assert summarize(snapshot(at_s=60.0, completed=1), detector, first_kill_s=None).missing is None


def test_line_display_prints_totals_every_two_seconds() -> None:
    printed: list[str] = []
    display = LineDisplay(printed.append)
    for at_s in (0.0, 0.5, 1.9, 2.0, 3.9, 4.1):
        display.show(snapshot(at_s=at_s, completed=10))
    assert [line.split()[0] for line in printed] == ["00:00.0", "00:02.0", "00:04.1"]
    assert "10 completed" in printed[0]


def test_queue_rate_draws_a_sparkline_and_computes_the_mean() -> None:
    rate = QueueRate()
    for completed in (0, 0, 4, 12, 12):
        rate.update(completed, 0.5)
    assert rate.sparkline(6) == "   ▅█ "
    assert rate.sparkline(2) == "█ "
    assert rate.mean(updates=4) == 6.0


def test_clock_rounds_to_tenths() -> None:
    assert [clock(at_s) for at_s in (0, 9.96, 59.96, 75.25)] == ["00:00.0", "00:10.0", "01:00.0", "01:15.2"]
