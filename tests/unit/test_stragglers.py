"""What a worker remembers of the jobs that its claims passed by."""

import pytest

from awa_py.worker.claiming.stragglers import DOUBLINGS, MOST, OFFERED, PAUSE_S, Stragglers

NOW = 100.0


@pytest.fixture
def stragglers() -> Stragglers:
    return Stragglers()


def claims(
    stragglers: Stragglers, now: float = NOW, *, taken: set[int] | None = None, passed_by: list[int]
) -> list[int]:
    """What a claim was offered."""
    offered = stragglers.offer(now)
    stragglers.claimed(offered, taken or set(), passed_by, now=now)
    return offered


def test_who_was_passed_by_is_offered(stragglers: Stragglers) -> None:
    assert stragglers.due_at is None
    assert claims(stragglers, passed_by=[1, 2]) == []
    assert stragglers.due_at == NOW
    assert stragglers.offer(NOW) == [1, 2]


def test_until_it_is_taken_by_this_worker_or_another(stragglers: Stragglers) -> None:
    claims(stragglers, passed_by=[1, 2])
    assert claims(stragglers, taken={1}, passed_by=[]) == [1, 2]
    assert stragglers.due_at is None


def test_a_claim_that_fails_forgets_nobody(stragglers: Stragglers) -> None:
    claims(stragglers, passed_by=[1, 2])
    stragglers.offer(NOW)
    assert stragglers.offer(NOW) == [1, 2]


def test_who_has_no_room_is_offered_ever_more_rarely(stragglers: Stragglers) -> None:
    claims(stragglers, passed_by=[1])
    now, pauses_s = NOW, []
    for _ in range(DOUBLINGS + 2):
        assert claims(stragglers, now, passed_by=[1]) == [1]
        assert stragglers.due_at is not None
        pauses_s.append(stragglers.due_at - now)
        assert claims(stragglers, now, passed_by=[]) == []
        now = stragglers.due_at
    assert pauses_s[:3] == pytest.approx([PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S])
    assert pauses_s[-1] == pauses_s[-2] == pytest.approx(2**DOUBLINGS * PAUSE_S)


@pytest.mark.parametrize(("taken", "passed_by"), [(set(), [1, 2]), ({1}, [3])])
def test_who_comes_anew_is_offered_at_once(stragglers: Stragglers, taken: set[int], passed_by: list[int]) -> None:
    claims(stragglers, passed_by=[1])
    claims(stragglers, passed_by=[1])
    now = NOW + PAUSE_S
    claims(stragglers, now, taken=taken, passed_by=passed_by)
    assert stragglers.due_at == now


def test_where_some_had_room_the_others_are_tried_again_at_once(stragglers: Stragglers) -> None:
    claims(stragglers, passed_by=[1, 2])
    claims(stragglers, taken={1}, passed_by=[2])
    assert stragglers.offer(NOW) == [2]


def test_many_are_offered_in_turn(stragglers: Stragglers) -> None:
    jobs = list(range(2 * OFFERED))
    claims(stragglers, passed_by=jobs)
    assert claims(stragglers, taken={0}, passed_by=jobs[1:OFFERED]) == jobs[:OFFERED]
    assert claims(stragglers, passed_by=[]) == jobs[OFFERED:]
    assert claims(stragglers, passed_by=[]) == jobs[1:OFFERED]


def test_there_is_an_end_to_what_it_remembers(stragglers: Stragglers) -> None:
    claims(stragglers, passed_by=list(range(MOST + 5)))
    offered = []
    while stragglers.due_at is not None:
        offered += claims(stragglers, passed_by=[])
    assert offered == list(range(MOST))
