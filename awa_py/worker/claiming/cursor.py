"""Where a worker's next claim begins.

Claimed rows stay in the index until vacuum may remove them, and while anybody holds an old snapshot it may not. A
claim that began at the head would walk over all of them. So a worker remembers, per priority, how far it has come,
and begins a little below. What becomes visible late, further below (a long enqueue transaction), is found by a scan
from zero: when the short one finds too little, and at least every second, but never for more than a twentieth of
the time.
"""

from collections.abc import Collection, Sequence

from awa_py.db.types import Record
from awa_py.store.claim import PRIORITIES

SLACK = 1_000
FULL_SCAN_INTERVAL_S = 1.0
FULL_SCAN_SHARE = 20


class Cursor:
    """The cursor of one queue."""

    def __init__(self) -> None:
        self._seen = [0] * len(PRIORITIES)
        self._rest_until = 0.0
        self._full_due = 0.0
        self._hungry = False
        self.last_claim = 0.0

    def may_scan_fully(self, now: float) -> bool:
        """Whether the last scan from zero was long enough ago for what it cost."""
        return now >= self._rest_until

    @property
    def near(self) -> Sequence[int]:
        """The positions a little below what was seen."""
        return [max(0, seen - SLACK) for seen in self._seen]

    def above(self, now: float) -> tuple[Sequence[int], bool]:
        """The positions above which to scan, and whether that is everywhere."""
        if now >= self._full_due or (self._hungry and self.may_scan_fully(now)):
            return [0] * len(PRIORITIES), True
        return self.near, False

    def saw(
        self, rows: Sequence[Record], *, full: bool, began: float, ended: float, aside: Collection[int] = ()
    ) -> None:
        """Notes what a claim found. `aside`: of these jobs, those that it took say nothing of how far it has come."""
        in_line = [row for row in rows if row["id"] not in aside] if aside else rows
        # They come in the order of priority and position: where there is one priority, the last is the furthest.
        one_priority = in_line and in_line[0]["priority"] == in_line[-1]["priority"]
        for row in in_line[-1:] if one_priority else in_line:
            level = row["priority"] - 1
            self._seen[level] = max(self._seen[level], row["pos"])
        if full:
            rest = FULL_SCAN_SHARE * (ended - began)
            self._rest_until = ended + rest
            self._full_due = ended + max(FULL_SCAN_INTERVAL_S, rest)
        self._hungry = not rows
        self.last_claim = ended
