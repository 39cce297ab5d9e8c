"""What each of several processes tells its supervisor: a line in a pipe that all of them share."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from typing import Self

from awa_py.observability.metrics import ProcessStats

VARIABLE = "AWA_REPORTS_FD"
PIPE_BYTES = 65536  # all that a pipe holds


@dataclass(frozen=True, slots=True)
class Report:
    """How the process in one of the places is."""

    index: int
    at_work: bool  # it has started well
    is_ready: bool  # and nothing keeps it from its work
    stats: ProcessStats

    @classmethod
    def parse(cls, line: str) -> Self:
        index, at_work, is_ready, running, done, failed, leads = map(int, line.split())
        return cls(index, bool(at_work), bool(is_ready), ProcessStats(running, done, failed, bool(leads)))


class StatusReporter:
    """For a child: says how it is. Nobody asks where there is no supervisor."""

    def __init__(self, end: int | None = None, index: int = 0, every_s: float = 0) -> None:
        self._end = end
        self._index = index
        self.every_s = every_s  # 0: it is enough to say once that it is at work

    @classmethod
    def of_this_process(cls) -> Self:
        given = os.environ.pop(VARIABLE, None)  # not for the child's own children
        if given is None:
            return cls()
        end, index, every_s = given.split(":")
        os.set_inheritable(int(end), False)
        return cls(int(end), int(index), float(every_s))

    @staticmethod
    def variable(end: int, index: int, every_s: float) -> dict[str, str]:
        """For a supervisor: how the child finds the pipe."""
        return {VARIABLE: f"{end}:{index}:{every_s}"}

    def tell(self, stats: ProcessStats, *, at_work: bool, is_ready: bool) -> None:
        if self._end is None:
            return
        words = (self._index, at_work, is_ready, *astuple(stats))
        with suppress(OSError):  # the supervisor is gone, as the lifeline says too; or it does not come to read
            os.write(self._end, (" ".join(str(int(word)) for word in words) + "\n").encode())


def received(read_end: int) -> Iterable[Report]:
    """What has come since the last time; each line was written at once, so that there are no halves."""
    try:
        text = os.read(read_end, PIPE_BYTES).decode()
    except BlockingIOError:
        return []
    return [Report.parse(line) for line in text.splitlines()]


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    """The end to read from, and the one to inherit; neither ever blocks."""
    read_end, write_end = os.pipe()
    for end in (read_end, write_end):
        os.set_blocking(end, False)
    try:
        yield read_end, write_end
    finally:
        os.close(write_end)
        os.close(read_end)
