"""When a careful claim searches for what it overlooks, by a clock of the test's own."""

import asyncio
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from awa_py.store.claim import Note
from awa_py.store.session import Session
from awa_py.worker.claiming.cursor import Cursor
from awa_py.worker.claiming.taker import VAIN_SEARCHES, Taker
from awa_py.worker.directives import Directives, QueueDirectives

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
        self.takes_turns = False
        self.passes_by: list[int] = []
        self.offered: list[int] = []
        self.aside: Collection[int] = ()
        self._taker = Taker(["default"], kinds=["work"], shown_kinds=[], worker_id=UUID(int=1), timed=False)
        self._taker.orders = Directives(queues={"default": QueueDirectives(limited=True)})
        self._cursor = Cursor()
        self._cursor.saw([], full=True, began=self.now, ended=1e9)  # no scan is due by itself
        monkeypatch.setattr("awa_py.store.claim.find_overlooked_jobs", self._search)
        monkeypatch.setattr("awa_py.store.claim.claim_limited_jobs", self._claim)
        monkeypatch.setattr("awa_py.worker.claiming.taker.time", SimpleNamespace(monotonic=lambda: self.now))

    async def _search(self, *_: object, **__: object) -> tuple[list[int], str]:
        self.searches.append(self.now)
        self.now += SEARCH_TAKES_S
        return self.finds, self.keys_left

    async def _claim(self, *_: object, found: list[int], **__: object) -> tuple[list[Any], Note]:
        self.offered = found
        return [], Note(short=self.comes_short, search=self.takes_turns, passed_by=self.passes_by)

    def claim(self) -> bool:
        """Whether a claim searched."""
        before = len(self.searches)
        self.aside = asyncio.run(self._taker.take(SESSION, "default", self._cursor, 100, self.now)).aside
        return len(self.searches) > before

    @property
    def pause_s(self) -> float:
        """For how long no search may begin."""
        searches_at = self._taker.looks_again_at("default")
        assert searches_at is not None
        return searches_at - self.now

    @property
    def looks_again(self) -> bool:
        return self._taker.looks_again_at("default") is not None

    def is_blocked(self) -> None:
        """Two claims in a row come short."""
        assert not self.claim()
        assert not self.claim()


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    return Queue(monkeypatch)


def test_a_claim_that_comes_short_again_is_followed_by_a_search(queue: Queue) -> None:
    assert not queue.claim()
    assert queue.looks_again
    assert not queue.claim()
    assert queue.claim()


def test_one_that_comes_short_for_a_moment_is_not(queue: Queue) -> None:
    for _ in range(3):
        queue.comes_short = True
        assert not queue.claim()
        queue.comes_short = False
        assert not queue.claim()
    assert not queue.looks_again


def test_where_the_line_did_not_recover_the_last_time_a_search_comes_at_once(queue: Queue) -> None:
    queue.is_blocked()
    assert queue.claim()
    queue.now += 60
    assert not queue.claim()
    assert queue.claim()


def test_until_it_does(queue: Queue) -> None:
    queue.is_blocked()
    assert queue.claim()
    queue.now += 60
    queue.comes_short = False
    assert not queue.claim()
    queue.comes_short = True
    assert not queue.claim()
    assert not queue.claim()
    assert queue.claim()


def test_where_keys_take_turns_a_search_comes_before_each_claim(queue: Queue) -> None:
    queue.comes_short = False
    queue.takes_turns = True
    queue.finds = [7]
    assert not queue.claim()
    for _ in range(3):
        assert queue.claim()
        queue.now += queue.pause_s


def test_what_was_passed_by_is_offered_to_the_next_claim(queue: Queue) -> None:
    queue.comes_short = False
    queue.passes_by = [4, 5]
    queue.claim()
    assert queue.looks_again
    queue.passes_by = []
    queue.claim()
    assert queue.offered == [4, 5]
    queue.claim()
    assert queue.offered == []
    assert not queue.looks_again


def test_what_a_search_found_moves_the_cursor_only_where_the_line_is_blocked(queue: Queue) -> None:
    queue.finds = [7]
    queue.passes_by = [4]
    queue.takes_turns = True
    queue.comes_short = False
    queue.claim()
    queue.claim()
    assert queue.aside == {4, 7}
    queue.takes_turns = False
    queue.comes_short = True
    queue.now += queue.pause_s
    queue.claim()
    queue.is_blocked()
    queue.now += 60
    assert queue.claim()
    assert queue.aside == {4}


def test_the_wish_to_search_outlives_a_claim_that_comes_too_early_for_it(queue: Queue) -> None:
    queue.finds = [7]
    queue.is_blocked()
    assert queue.claim()
    queue.comes_short = False
    assert not queue.claim()
    assert not queue.claim()
    queue.now += queue.pause_s
    assert queue.claim()


def test_a_search_in_vain_fulfils_the_wish(queue: Queue) -> None:
    queue.is_blocked()
    assert queue.claim()
    queue.now += 60
    queue.comes_short = False
    assert not queue.claim()


def test_searches_in_vain_become_rare_until_one_finds_something(queue: Queue) -> None:
    pauses_s = []
    queue.is_blocked()
    for _ in range(VAIN_SEARCHES + 2):
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
    queue.is_blocked()
    for _ in range(5):
        assert queue.claim()
        assert queue.pause_s == pytest.approx(SEARCH_TAKES_S)
        queue.now += queue.pause_s
