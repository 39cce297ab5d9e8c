"""Jobs that a worker's claims passed by.

A claim goes past jobs whose keys have no room, and the next one begins where it ended. A search finds them again; but
it walks over all that has ended while somebody held an old snapshot, so it must be rare there. Therefore a worker
remembers what it passed by, and lets its next claims look at that, too.
"""

from collections.abc import Sequence, Set

MOST = 1_000  # those beyond are left to the search
OFFERED = 100  # at a time
PAUSE_S = 0.02  # after an offer in vain; it doubles with each …
DOUBLINGS = 7  # … so often at the most


class Stragglers:
    """Those of one queue, by their ids, in the order in which they were passed by."""

    __slots__ = ("_jobs", "_offer_at", "_vain")

    def __init__(self) -> None:
        self._jobs: dict[int, None] = {}
        self._offer_at = 0.0
        self._vain = 0  # offers in a row of which none was taken

    @property
    def due_at(self) -> float | None:
        """When it is worth offering some, where there are any."""
        return self._offer_at if self._jobs else None

    def offer(self, now: float) -> list[int]:
        """What the next claim may take, too."""
        return list(self._jobs)[:OFFERED] if now >= self._offer_at else []

    def claimed(self, offered: Sequence[int], taken: Set[int], passed_by: Sequence[int], *, now: float) -> None:
        """What a claim took, and what it passed by. What is neither, of those that were offered, others have taken."""
        refused = [job for job in passed_by if job in self._jobs]
        if len(refused) < len(passed_by):
            self._vain = 0
            self._offer_at = now
        elif refused and taken.isdisjoint(offered):
            self._offer_at = now + PAUSE_S * 2**self._vain
            self._vain = min(self._vain + 1, DOUBLINGS)
        elif offered:
            self._vain = 0
        for job in offered:
            del self._jobs[job]
        for job in passed_by[: MOST - len(self._jobs)]:
            self._jobs[job] = None
