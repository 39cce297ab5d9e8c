"""When a queue is worth a claim, by a clock of the test's own."""

from types import SimpleNamespace
from typing import cast

import pytest

from awa_py.worker.claiming.prospects import (
    BORROW_S,
    ENOUGH,
    INTEREST_S,
    RATED_JOBS,
    RATED_PAUSES_S,
    REST_S,
    REST_SHARE,
    SCARCE_S,
    SHORT_S,
    Prospects,
)
from awa_py.worker.claiming.taker import Taker
from awa_py.worker.in_flight import InFlightJobs

QUEUE = "default"
PATIENCE_S = 5.0


class Worker:
    """What prospects ask about: a queue with keys, of which the worker has no part and nothing in flight."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.careful = True
        self.rate: float | None = None
        self.again_at: float | None = None
        self.waited_s = 0.0
        self.amid_search = False
        self.at_its_share = False
        self.in_flight = 0
        self.limited = False
        self.to_do = 0
        monkeypatch.setattr("awa_py.worker.claiming.prospects.time", SimpleNamespace(monotonic=lambda: self.now))
        taker = SimpleNamespace(
            told=lambda _: SimpleNamespace(rate=self.rate, limited=self.limited),
            is_careful=lambda *_: self.careful,
            is_amid_search=lambda _: self.amid_search,
            looks_again_at=lambda _: self.again_at,
            waited_s=lambda _: self.waited_s,
        )
        self.prospects = Prospects([QUEUE], cast(Taker, taker), cast(InFlightJobs, self))

    def __len__(self) -> int:
        return self.in_flight

    def backlog(self, _: str) -> int:
        return self.to_do

    def is_at_its_share(self, _: str) -> bool:
        return self.at_its_share

    def claims(self, jobs: int, limit: int = 10, waited_s: float = 0.0) -> None:
        self.waited_s = waited_s
        self.prospects.claim_begins(QUEUE)
        self.prospects.claim_gave(QUEUE, jobs, limit)

    def would_claim(self) -> bool:
        self.prospects.promise_what_is_due()
        return QUEUE in self.prospects.promising

    @property
    def waits_s(self) -> float:
        return self.prospects.due_in_s(PATIENCE_S)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    return Worker(monkeypatch)


def test_a_worker_that_begins_looks_everywhere(worker: Worker) -> None:
    assert worker.would_claim()


def test_a_queue_that_gave_all_that_was_asked_for_has_more(worker: Worker) -> None:
    worker.claims(10)
    assert worker.would_claim()


def test_a_queue_without_limits_that_gave_less_is_empty_until_somebody_says_otherwise(worker: Worker) -> None:
    worker.careful = False
    worker.claims(9)
    worker.now += 60
    assert not worker.prospects.slot_is_free()
    assert not worker.would_claim()
    assert worker.waits_s == PATIENCE_S


def test_a_wake_up_in_the_middle_of_a_claim_is_not_forgotten(worker: Worker) -> None:
    worker.prospects.claim_begins(QUEUE)
    worker.prospects.promising.add(QUEUE)
    worker.prospects.claim_gave(QUEUE, 0, 10)
    assert worker.would_claim()


def test_a_queue_within_limits_that_came_short_is_worth_a_look_when_a_job_has_ended(worker: Worker) -> None:
    worker.claims(3)
    worker.now += SHORT_S
    assert not worker.would_claim()
    assert worker.waits_s == PATIENCE_S
    assert worker.prospects.slot_is_free()
    assert worker.waits_s == 0
    assert worker.would_claim()


def test_what_came_short_once_is_forgotten_when_it_was_looked_at(worker: Worker) -> None:
    worker.claims(3)
    worker.prospects.slot_is_free()
    worker.now += SHORT_S
    assert worker.would_claim()
    worker.careful = False
    worker.claims(0)
    assert not worker.prospects.slot_is_free()


def test_jobs_that_end_one_after_another_are_claimed_for_together(worker: Worker) -> None:
    worker.claims(3)
    worker.prospects.slot_is_free()
    assert not worker.would_claim()
    assert worker.waits_s == pytest.approx(SHORT_S)
    worker.now += SHORT_S
    assert worker.would_claim()


def test_a_job_that_ended_during_a_claim_that_came_short_counts(worker: Worker) -> None:
    worker.prospects.claim_begins(QUEUE)
    worker.prospects.slot_is_free()
    worker.prospects.claim_gave(QUEUE, 0, 10)
    assert worker.waits_s == pytest.approx(SHORT_S)


def test_where_a_search_is_wanted_a_claim_comes_when_it_may_begin(worker: Worker) -> None:
    worker.again_at = worker.now + 3
    worker.claims(0)
    assert worker.waits_s == pytest.approx(3)


def test_a_search_goes_on_at_once_where_nothing_runs_and_in_a_moment_otherwise(worker: Worker) -> None:
    worker.amid_search = True
    worker.claims(0)
    assert worker.waits_s == 0
    worker.would_claim()
    worker.in_flight = 1
    worker.claims(0)
    assert worker.waits_s == pytest.approx(SHORT_S)


@pytest.mark.parametrize(
    ("rate", "pause_s"), [(100.0, RATED_JOBS / 100), (1_000_000.0, RATED_PAUSES_S[0]), (0.1, RATED_PAUSES_S[1])]
)
def test_a_rate_that_is_used_up_recovers_by_itself(worker: Worker, rate: float, pause_s: float) -> None:
    worker.rate = rate
    worker.claims(3)
    assert worker.waits_s == pytest.approx(pause_s)


def test_a_queue_with_a_rate_that_gives_nothing_for_long_is_like_any_other(worker: Worker) -> None:
    worker.rate = 100.0
    worker.claims(3)
    worker.now += INTEREST_S
    assert worker.would_claim()
    worker.claims(0)
    assert worker.waits_s == PATIENCE_S


def test_a_worker_at_its_part_borrows_once_in_a_while(worker: Worker) -> None:
    worker.at_its_share = True
    assert not worker.prospects.may_borrow(QUEUE)
    worker.now += BORROW_S
    assert worker.prospects.may_borrow(QUEUE)
    assert not worker.prospects.may_borrow(QUEUE)


def test_who_had_room_in_between_waits_anew_before_it_borrows(worker: Worker) -> None:
    worker.at_its_share = True
    assert not worker.prospects.may_borrow(QUEUE)
    worker.at_its_share = False
    assert not worker.prospects.may_borrow(QUEUE)
    worker.at_its_share = True
    worker.now += BORROW_S
    assert not worker.prospects.may_borrow(QUEUE)


class TestLittleRoom:
    """Where keys have room for few jobs, and several workers want them."""

    def test_who_got_little_and_waited_for_it_leaves_the_queue_to_others_for_a_while(self, worker: Worker) -> None:
        worker.claims(4, waited_s=0.002)
        assert not worker.prospects.may_claim(QUEUE)
        worker.now += REST_SHARE * 0.002 - 0.001
        assert not worker.prospects.may_claim(QUEUE)
        worker.now += 0.002
        assert worker.prospects.may_claim(QUEUE)

    def test_but_not_for_long(self, worker: Worker) -> None:
        worker.claims(0, waited_s=60.0)
        worker.now += REST_S - 0.001
        assert not worker.prospects.may_claim(QUEUE)
        worker.now += 0.002
        assert worker.prospects.may_claim(QUEUE)

    def test_who_did_not_wait_need_not_rest(self, worker: Worker) -> None:
        worker.claims(0)
        assert worker.prospects.may_claim(QUEUE)

    def test_a_queue_that_is_promised_meanwhile_is_looked_at_when_the_rest_is_over(self, worker: Worker) -> None:
        worker.claims(0, waited_s=0.002)
        assert worker.waits_s == PATIENCE_S
        worker.prospects.promising.add(QUEUE)
        assert worker.waits_s == pytest.approx(REST_SHARE * 0.002)

    def test_a_job_that_ended_is_followed_by_a_claim_when_the_rest_is_over(self, worker: Worker) -> None:
        worker.claims(0, waited_s=0.002)
        assert worker.prospects.slot_is_free()
        assert worker.waits_s == pytest.approx(REST_SHARE * 0.002)

    def test_new_jobs_end_the_rest(self, worker: Worker) -> None:
        worker.claims(0, waited_s=0.002)
        worker.prospects.has_new_jobs(QUEUE)
        assert worker.would_claim()
        assert worker.prospects.may_claim(QUEUE)

    def test_a_queue_without_keys_is_not_left_alone(self, worker: Worker) -> None:
        worker.careful = False
        worker.to_do = ENOUGH + 1
        worker.claims(0, waited_s=0.002)
        assert worker.prospects.may_claim(QUEUE)

    def test_who_has_jobs_enough_sees_to_them_first(self, worker: Worker) -> None:
        worker.to_do = ENOUGH + 1
        worker.claims(10)
        assert worker.prospects.may_claim(QUEUE)
        worker.claims(9)
        assert not worker.prospects.may_claim(QUEUE)
        worker.to_do = ENOUGH
        assert worker.prospects.may_claim(QUEUE)

    def test_where_there_was_room_of_late_it_does_not(self, worker: Worker) -> None:
        worker.to_do = ENOUGH + 1
        worker.claims(9)
        worker.now += SCARCE_S
        assert worker.prospects.may_claim(QUEUE)

    def test_nor_where_other_limits_say_how_many_it_may_have(self, worker: Worker) -> None:
        worker.limited = True
        worker.to_do = ENOUGH + 1
        worker.claims(9)
        assert worker.prospects.may_claim(QUEUE)
