"""When a scan starts at the beginning instead of at a cursor.

Deleted rows stay in an index until vacuum removes them, and vacuum has to wait for the oldest snapshot. A scan from the
beginning walks over all of them. So claims and promotions remember how far they came, and start their next scan there.
There may be rows before that point, e.g. those of a long enqueue transaction. Full scans find them: if a scan from the
cursor found too little, and otherwise at a fixed interval. They take at most one twentieth of the time.
"""

COST_RATIO = 20  # the pause after a full scan is at least this many times as long as the scan


class FullScanSchedule:
    """Decides which scans are full scans. Times are those of `time.monotonic()`."""

    __slots__ = ("_due_at", "_interval_s", "allowed_at", "found_too_little")

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._due_at = 0.0
        self.found_too_little = False  # the last scan
        self.allowed_at = 0.0  # the next full scan may start then

    def is_due(self, now: float) -> bool:
        return now >= self._due_at or (self.found_too_little and now >= self.allowed_at)

    def record(self, *, full: bool, found_too_little: bool, began: float, ended: float) -> None:
        """Record a scan."""
        self.found_too_little = found_too_little
        if full:
            pause_s = COST_RATIO * (ended - began)
            self.allowed_at = ended + pause_s
            self._due_at = ended + max(self._interval_s, pause_s)
