"""The answers to many jobs are like a list of them, and each is made when somebody looks."""

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
def answers(made: list[int]) -> EnqueuedJobs:
    def make(n: int) -> Job:
        made.append(n)
        return job(n)

    return EnqueuedJobs(5, make)


def test_only_what_is_looked_at_is_made_and_that_once(answers: EnqueuedJobs, made: list[int]) -> None:
    assert len(answers) == 5
    assert made == []
    assert answers[3] is answers[3]
    assert answers[-1].id == 4
    assert made == [3, 4]


def test_it_is_read_like_a_list(answers: EnqueuedJobs) -> None:
    alike = [job(n) for n in range(5)]
    assert list(answers) == alike
    assert answers[1:3] == alike[1:3]
    assert answers[::-2] == alike[::-2]
    assert list(reversed(answers)) == alike[::-1]
    assert job(2) in answers
    assert answers.index(job(2)) == 2
    first, *others = answers
    assert (first.id, len(others)) == (0, 4)
    for outside in (5, -6):
        with pytest.raises(IndexError):
            answers[outside]


def test_it_equals_a_list_of_the_same_jobs(answers: EnqueuedJobs) -> None:
    assert answers == [job(n) for n in range(5)]
    assert [job(n) for n in range(5)] == answers
    assert answers == EnqueuedJobs(5, job)
    assert answers != [job(n) for n in range(4)]
    assert answers != [job(n + 1) for n in range(5)]
    assert answers != "five"
    assert repr(answers) == "<5 enqueued jobs>"
