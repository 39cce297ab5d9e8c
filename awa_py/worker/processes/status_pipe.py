"""The status pipe: child processes report their status to the supervisor, one line per report, all in one pipe."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from typing import Self

from awa_py.observability.metrics import ProcessStats

VARIABLE = "AWA_REPORTS_FD"
PIPE_BYTES = 65536  # the capacity of a pipe


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusReport:
    """The status of one child process."""

    index: int
    has_started: bool
    is_ready: bool
    stats: ProcessStats

    @classmethod
    def parse(cls, line: str) -> Self:
        index, has_started, is_ready, running, done, failed, is_leader = map(int, line.split())
        stats = ProcessStats(running, done, failed, bool(is_leader))
        return cls(index=index, has_started=bool(has_started), is_ready=bool(is_ready), stats=stats)


class StatusReporter:
    """Sends the reports of a child process. Without a supervisor, it sends nothing."""

    def __init__(self, fd: int | None = None, index: int = 0, interval_s: float = 0) -> None:
        self._fd = fd
        self._index = index
        self.interval_s = interval_s  # 0: one report that the process has started is enough

    @classmethod
    def from_environ(cls) -> Self:
        """Create it from the variable, and remove that, so that processes that jobs start do not inherit it."""
        value = os.environ.pop(VARIABLE, None)
        if value is None:
            return cls()
        fd, index, interval_s = value.split(":")
        os.set_inheritable(int(fd), False)
        return cls(int(fd), int(index), float(interval_s))

    @staticmethod
    def variable(fd: int, index: int, interval_s: float) -> dict[str, str]:
        """Return the variable for the environment of a child process."""
        return {VARIABLE: f"{fd}:{index}:{interval_s}"}

    def send(self, stats: ProcessStats, *, has_started: bool, is_ready: bool) -> None:
        if self._fd is None:
            return
        values = (self._index, has_started, is_ready, *astuple(stats))
        with suppress(OSError):  # the supervisor has ended, which the lifeline reports too, or the pipe is full
            os.write(self._fd, (" ".join(str(int(value)) for value in values) + "\n").encode())


def read_reports(read_fd: int) -> list[StatusReport]:
    """Return the reports that have arrived. Lines are complete: each was written by one call."""
    try:
        text = os.read(read_fd, PIPE_BYTES).decode()
    except BlockingIOError:
        return []
    return [StatusReport.parse(line) for line in text.splitlines()]


@contextmanager
def status_pipe() -> Iterator[tuple[int, int]]:
    """Open a pipe that never blocks. Yield the end to read from and the end that children inherit."""
    read_fd, write_fd = os.pipe()
    for fd in (read_fd, write_fd):
        os.set_blocking(fd, False)
    try:
        yield read_fd, write_fd
    finally:
        os.close(write_fd)
        os.close(read_fd)
