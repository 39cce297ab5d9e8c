"""How many jobs a worker asks for, where keys leave room for few.

If there is room for a thousand jobs and four workers ask for five hundred each, two of them find nothing, again and
again, and the room that the two others leave is used late. So a claim that finds little room says how many each worker
would have if all had as many, and that is what the worker asks for from then on; a little more each time that it gets
everything. And it asks for nothing while most of that is still to run or to be written: its own jobs take the room.
"""

LARGEST = 500
SMALLEST = 50
MORE = 1.05
SCARCE_S = 1.0  # a queue that had little room is expected to have little for so long
ENOUGH = 0.1  # of a portion: with no more than that left, a worker asks again


class Portion:
    """What a worker asks of one queue at a time."""

    __slots__ = ("_scarce_until", "size")

    def __init__(self) -> None:
        self.size = LARGEST
        self._scarce_until = 0.0

    def claimed(self, part: int | None, now: float, *, all_asked_for: bool) -> None:
        """What a claim gave; and what the worker's part is, where there was little room."""
        if part is not None:
            self.size = min(max(part, SMALLEST), LARGEST)
        elif all_asked_for:
            self.size = min(int(self.size * MORE), LARGEST)
        if not all_asked_for:
            self._scarce_until = now + SCARCE_S

    def is_enough(self, backlog: int, now: float) -> bool:
        """Whether a worker that has so many jobs to run or to write should see to these first."""
        return now < self._scarce_until and backlog > self.size * ENOUGH
