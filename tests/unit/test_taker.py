"""When a careful claim searches for what it overlooks, by a clock of the test's own."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from awa_py.store.claim import Note
from awa_py.store.session import Session
from awa_py.worker.cursor import Cursor
from awa_py.worker.orders import Orders, QueueOrders
from awa_py.worker.taker import VAIN_SEARCHES, Taker

SESSION = cast(Session, None)
SEARCH_TAKES_S = 0.01


class Queue:
    """A limited queue whose searches and claims answer what they are told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.searches: list[float] = []
        self.finds: list[int] = []
        self.keys_left = ""
        self.comes_short = True
        self._taker = Taker(["default"], kinds=["work"], shown_kinds=[], worker_id=UUID(int=1), timed=False)
        self._taker.orders = Orders(queues={"default": QueueOrders(limited=True)})
        self._cursor = Cursor()
        self._cursor.saw([], full=True, began=self.now, ended=1e9)  # no scan is due by itself
        monkeypatch.setattr("awa_py.store.claim.find_overlooked_jobs", self._search)
        monkeypatch.setattr("awa_py.store.claim.claim_limited_jobs", self._claim)
        monkeypatch.setattr("awa_py.worker.taker.time", SimpleNamespace(monotonic=lambda: self.now))

    async def _search(self, *_: object, **__: object) -> tuple[list[int], str]:
        self.searches.append(self.now)
        self.now += SEARCH_TAKES_S
        return self.finds, self.keys_left

    async def _claim(self, *_: object, **__: object) -> tuple[list[Any], Note]:
        return [], Note(search=self.comes_short)

    def claim(self) -> bool:
        """Whether a claim searched."""
        before = len(self.searches)
        asyncio.run(self._taker.take(SESSION, "default", self._cursor, 100, self.now))
        return len(self.searches) > before

    @property
    def pause_s(self) -> float:
        """For how long no search may begin."""
        searches_at = self._taker.looks_elsewhere_at("default")
        assert searches_at is not None
        return searches_at - self.now


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    return Queue(monkeypatch)


def test_a_claim_that_comes_short_is_followed_by_a_search(queue: Queue) -> None:
    assert not queue.claim()
    assert queue.claim()


def test_the_wish_to_search_outlives_a_claim_that_comes_too_early_for_it(queue: Queue) -> None:
    queue.finds = [7]
    queue.claim()
    assert queue.claim()
    queue.comes_short = False
    assert not queue.claim()
    assert not queue.claim()
    queue.now += queue.pause_s
    assert queue.claim()


def test_a_search_in_vain_fulfils_the_wish(queue: Queue) -> None:
    queue.claim()
    assert queue.claim()
    queue.now += 60
    queue.comes_short = False
    assert not queue.claim()


def test_searches_in_vain_become_rare_until_one_finds_something(queue: Queue) -> None:
    pauses_s = []
    for _ in range(VAIN_SEARCHES + 2):
        queue.claim()
        queue.now += max(0.0, queue.pause_s)
        assert queue.claim()
        queue.claim()
        pauses_s.append(queue.pause_s)
    assert pauses_s[:3] == pytest.approx([2 * SEARCH_TAKES_S, 4 * SEARCH_TAKES_S, 8 * SEARCH_TAKES_S])
    assert pauses_s[-1] == pauses_s[-2] == pytest.approx(2**VAIN_SEARCHES * SEARCH_TAKES_S)
    queue.finds = [7]
    queue.now += queue.pause_s
    assert queue.claim()
    assert queue.pause_s == pytest.approx(SEARCH_TAKES_S)


def test_a_search_that_has_not_seen_all_keys_soon_goes_on(queue: Queue) -> None:
    queue.keys_left = "customer-200"
    queue.claim()
    for _ in range(5):
        assert queue.claim()
        assert queue.pause_s == pytest.approx(SEARCH_TAKES_S)
        queue.now += queue.pause_s
