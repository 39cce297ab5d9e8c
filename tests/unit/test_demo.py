"""What the demo tells of what it sees."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from awa_cli.demo.command import ending_of
from awa_cli.demo.scene import Chronicle, Scene, Tone
from awa_cli.demo.view import Lines, LoopMonitor, clock

from awa_py.model.job import Job, State
from awa_py.store.election import Leader
from awa_py.store.jobs import JobCounts
from awa_py.store.queues import WorkerRow
from awa_py.store.schedules import ScheduleRow

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
)


def scene(*jobs: Job, at_s: float = 1.0, done: int = 0, **rest: Any) -> Scene:
    given: dict[str, Any] = {"workers": [], "leader": None, "schedules": [], "queues": []}
    counts = JobCounts({State.COMPLETED: done}, completed=done, dead=0)
    return Scene(at_s=at_s, counts=counts, jobs={job.id: job for job in jobs}, **given | rest)


def error(text: str, attempt: int = 1) -> dict[str, Any]:
    return {"attempt": attempt, "at": NOW.isoformat(), "error": text}


def texts(chronicle: Chronicle, scene: Scene) -> list[str]:
    return [event.text for event in chronicle.tell(scene)]


def test_a_failure_a_retry_and_its_success_are_told_once_each() -> None:
    chronicle = Chronicle()
    assert texts(chronicle, scene(JOB, workers=[WORKER])) == ["worker pid 7 joined"]
    failed = replace(JOB, state=State.RETRYABLE, errors=[error("Busy: later")], run_at=NOW + timedelta(seconds=1))
    assert texts(chronicle, scene(failed)) == ["send_receipt #12 failed: Busy: later; retry in 1 s"]
    again = replace(failed, state=State.RUNNING, attempt=2)
    assert texts(chronicle, scene(again)) == []
    done = replace(again, state=State.COMPLETED)
    assert texts(chronicle, scene(done)) == ["send_receipt #12 completed on worker pid 7 at its 2nd attempt"]
    assert chronicle.tally == {"retried": 1}


def test_a_rescue_is_not_a_failure() -> None:
    chronicle = Chronicle()
    stale = replace(JOB, state=State.RETRYABLE, errors=[error("heartbeat stale: worker presumed dead")])
    (told,) = chronicle.tell(scene(stale))
    assert (told.tone, told.text) == (
        Tone.GOOD,
        "send_receipt #12 was rescued: heartbeat stale: worker presumed dead",
    )
    assert chronicle.tally == {"rescued": 1}


def test_the_last_failure_is_told_as_such() -> None:
    dead = replace(JOB, state=State.FAILED, errors=[error("Busy: later", 5)])
    assert texts(Chronicle(), scene(dead)) == ["send_receipt #12 failed for good: Busy: later"]


def test_schedules_and_elections_are_told_when_they_change() -> None:
    chronicle = Chronicle()
    leader = Leader(WORKER.id, "here", 7, 3, NOW)
    fired = replace(RATES, last_enqueued_at=NOW)
    assert texts(chronicle, scene(schedules=[RATES])) == []
    assert texts(chronicle, scene(schedules=[fired], leader=leader)) == [
        "worker pid 7 was elected leader, epoch 3",
        "schedule rates fired: fetch_rates enqueued",
    ]
    assert texts(chronicle, scene(schedules=[fired], leader=leader)) == []
    assert chronicle.tally == {"fired": 1}


@pytest.mark.parametrize(
    ("at_s", "done", "tally", "missing"),
    [
        (2.0, 0, {}, None),
        (8.0, 0, {}, "no job was completed in 8 s"),
        (8.0, 1, {}, None),
        (60.0, 1, {"retried": 1, "rescued": 1, "fired": 1}, None),
        (60.0, 1, {"retried": 1}, "no schedule fired, no job was rescued in 60 s"),
    ],
)
def test_what_should_have_happened_by_now(at_s: float, done: int, tally: dict[str, int], missing: str | None) -> None:
    chronicle = Chronicle()
    chronicle.tally.update(tally)
    assert ending_of(scene(at_s=at_s, done=done), chronicle, killed_at_s=1.0).missing == missing


def test_where_nobody_was_killed_nobody_needs_a_rescue() -> None:
    chronicle = Chronicle()
    chronicle.tally.update(retried=1, fired=1)
    assert ending_of(scene(at_s=60.0, done=1), chronicle, killed_at_s=None).missing is None


def test_lines_give_the_figures_every_other_second() -> None:
    said: list[str] = []
    lines = Lines(said.append)
    for at_s in (0.0, 0.5, 1.9, 2.0, 3.9, 4.1):
        lines.show(scene(at_s=at_s, done=10))
    assert [line.split()[0] for line in said] == ["00:00.0", "00:02.0", "00:04.1"]
    assert "10 done" in said[0]


def test_sparklines_are_scaled_to_their_own_top() -> None:
    pulse = LoopMonitor()
    for done in (0, 0, 4, 12, 12):
        pulse.beat(done, 0.5)
    assert pulse.sparkline(6) == "   ▅█ "
    assert pulse.sparkline(2) == "█ "
    assert pulse.rate(beats=4) == 6.0


def test_the_clock() -> None:
    assert [clock(at_s) for at_s in (0, 9.96, 59.96, 75.25)] == ["00:00.0", "00:10.0", "01:00.0", "01:15.2"]
