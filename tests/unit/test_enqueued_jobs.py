"""The result of enqueue_many is like a list, and makes each job when it is read."""

from datetime import UTC, datetime

import pytest

from awa_py.enqueue.enqueuer import EnqueuedJobs
from awa_py.model.job import Job, State

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def job(n: int) -> Job:
    return Job(
        id=n,
        kind="work",
        queue="default",
        state=State.AVAILABLE,
        priority=2,
        attempt=0,
        max_attempts=25,
        args={},
        run_at=NOON,
        created_at=NOON,
    )


@pytest.fixture
def made() -> list[int]:
    return []


@pytest.fixture
def jobs(made: list[int]) -> EnqueuedJobs:
    def make(n: int) -> Job:
        made.append(n)
        return job(n)

    return EnqueuedJobs(5, make)


def test_job_is_made_once_when_it_is_read(jobs: EnqueuedJobs, made: list[int]) -> None:
    assert len(jobs) == 5
    assert made == []
    assert jobs[3] is jobs[3]
    assert jobs[-1].id == 4
    assert made == [3, 4]


def test_enqueued_jobs_read_like_a_list(jobs: EnqueuedJobs) -> None:
    expected = [job(n) for n in range(5)]
    assert list(jobs) == expected
    assert jobs[1:3] == expected[1:3]
    assert jobs[::-2] == expected[::-2]
    assert list(reversed(jobs)) == expected[::-1]
    assert job(2) in jobs
    assert jobs.index(job(2)) == 2
    first, *others = jobs
    assert (first.id, len(others)) == (0, 4)
    for outside in (5, -6):
        with pytest.raises(IndexError):
            jobs[outside]


def test_enqueued_jobs_equal_a_list_of_the_same_jobs(jobs: EnqueuedJobs) -> None:
    assert jobs == [job(n) for n in range(5)]
    assert [job(n) for n in range(5)] == jobs
    assert jobs == EnqueuedJobs(5, job)
    assert jobs != [job(n) for n in range(4)]
    assert jobs != [job(n + 1) for n in range(5)]
    assert jobs != "five"
    assert repr(jobs) == "<5 enqueued jobs>"
