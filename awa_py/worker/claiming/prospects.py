"""Which queues are worth a claim, and from when on."""

import time
from collections.abc import Sequence

from awa_py.worker.claiming.taker import Taker
from awa_py.worker.in_flight import InFlightJobs

SHORT_S = 0.02  # a queue that gave all that its limits allow is worth another look only when some jobs have ended
REST_SHARE = 30  # one that gave little is left to others for so many times what the claim waited for theirs …
REST_S = 0.2  # … but not for longer than that
SCARCE_S = 1.0  # keys that had no room for all that was asked for are expected to have little for so long
ENOUGH = 50  # meanwhile, whoever has more jobs of the queue that wait, or are being written, sees to them first
BORROW_S = 1.0  # a job that has waited for so long beside a worker with a free slot may be in nobody's part
INTEREST_S = 2.0  # a queue with a rate that gave nothing for so long is looked at like any other
RATED_JOBS = 10  # where a rate is used up, the next look is when so many may begin
RATED_PAUSES_S = (0.02, 0.5)  # but not sooner, nor later, than that


class Prospects:
    """What a worker expects of its queues: from what it was told, and from what its last claims gave."""

    def __init__(self, queues: Sequence[str], taker: Taker, flights: InFlightJobs) -> None:
        self._taker = taker
        self._flights = flights
        self.promising = set(queues)  # may have something to claim
        self._look_again_at: dict[str, float] = {}  # may have something to claim from then on
        self._short: dict[str, float] = {}  # gave all that their limits allow, and when more is worth a look
        self._frees = 0  # how often slots came free
        self._frees_before = dict.fromkeys(queues, 0)  # as of the last claim's beginning
        self._gave_at = dict.fromkeys(queues, 0.0)
        self._rests_until = dict.fromkeys(queues, 0.0)
        self._scarce_until = dict.fromkeys(queues, 0.0)
        self._borrow_at: dict[str, float] = {}  # the worker has its part of them, and may try for more from then on

    def slot_is_free(self) -> bool:
        """A key has a place again, say. Whether a claim may be worth it, now or soon."""
        self._frees += 1
        self._look_again_at |= self._short
        self._short.clear()
        return bool(self.promising or self._look_again_at)

    def promise_what_is_due(self) -> None:
        now = time.monotonic()
        due = {queue for queue, moment in self._look_again_at.items() if moment <= now}
        for queue in due:
            del self._look_again_at[queue]
        self.promising |= due

    def due_in_s(self, longest_s: float) -> float:
        """How long to wait for the next queue to be worth a look, and for how long at the most."""
        now = time.monotonic()
        rests = [until for queue in self.promising if (until := self._rests_until[queue]) > now]
        return min(longest_s, max(0.0, min((*self._look_again_at.values(), *rests), default=longest_s + now) - now))

    def has_new_jobs(self, queue: str) -> None:
        """Somebody has said so: their keys may have room."""
        self.promising.add(queue)
        self._rests_until[queue] = 0.0

    def may_claim(self, queue: str) -> bool:
        """Where keys have little room, a worker lets its own jobs end first, since they take some of it; and it leaves
        the queue to others for a while after it got little: claims come one after another, and theirs find more."""
        now = time.monotonic()
        if now < self._scarce_until[queue] and self._flights.backlog(queue) > ENOUGH:
            return False
        return now >= self._rests_until[queue]

    def may_borrow(self, queue: str) -> bool:
        """Whether to take one job beyond the worker's part: those who have the others may know other kinds, or have no
        slot. The claim keeps the whole."""
        if not self._flights.is_at_its_share(queue):
            self._borrow_at.pop(queue, None)
            return False
        now = time.monotonic()
        if now < self._borrow_at.setdefault(queue, now + BORROW_S):
            return False
        del self._borrow_at[queue]
        return True

    def claim_begins(self, queue: str) -> None:
        """Before the statement: a wake-up that comes while it runs may be about a job that it does not see."""
        self.promising.discard(queue)
        self._frees_before[queue] = self._frees

    def claim_gave(self, queue: str, jobs: int, limit: int) -> None:
        """What a claim of so many jobs at the most says about the next."""
        now = time.monotonic()
        if jobs:
            self._gave_at[queue] = now
        if jobs == limit:
            self.promising.add(queue)
        elif self._taker.is_amid_search(queue):
            self._go_on_searching(queue, now)
        elif self._taker.is_careful(queue, now):
            self._came_short(queue, now)

    def _go_on_searching(self, queue: str, now: float) -> None:
        """The keys so far were at their limits. The next are looked at when a job has ended here, or in a moment."""
        self.promising.add(queue)
        soon = now + (SHORT_S if len(self._flights) else 0.0)
        self._look_again_at[queue] = max(soon, self._taker.looks_again_at(queue) or 0.0)

    def _came_short(self, queue: str, now: float) -> None:
        """A rate recovers by itself; other limits when a job has ended, as one may have meanwhile. Where it is worth
        looking for jobs with room elsewhere, that comes next."""
        told = self._taker.told(queue)
        if told.rate and now < self._gave_at[queue] + INTEREST_S:
            shortest_s, longest_s = RATED_PAUSES_S
            self._look_again_at[queue] = now + min(max(RATED_JOBS / told.rate, shortest_s), longest_s)
            return
        if not told.limited:
            self._scarce_until[queue] = now + SCARCE_S
        self._rests_until[queue] = now + min(REST_SHARE * self._taker.waited_s(queue), REST_S)
        soon = max(now + SHORT_S, self._rests_until[queue])
        if self._frees > self._frees_before[queue]:
            self._look_again_at[queue] = soon
        else:
            self._short[queue] = soon
            if (again_at := self._taker.looks_again_at(queue)) is not None:
                self._look_again_at[queue] = max(soon, again_at)
