"""A place for one of several processes, and how the process that holds it is."""

import socket
import subprocess
import time
from dataclasses import dataclass, field

from awa_py.observability.metrics import ProcessStats


@dataclass(slots=True)
class ChildProcess:
    """A place for a process, and the process that holds it now."""

    number: int
    listener: socket.socket | None = None  # outlives the process: the next one goes on with it
    process: "subprocess.Popen[bytes] | None" = None
    starts: int = 0
    started_at: float = 0.0
    failures: int = 0
    got_to_work: bool = False
    is_ready: bool = False
    failed_to_start: bool = False
    heard_at: float = 0.0  # by the clock of started_at
    is_aborted: bool = False
    stats: ProcessStats = field(default_factory=ProcessStats)
    start_again_at: float | None = None

    @property
    def age_s(self) -> float:
        """Since its last start."""
        return time.monotonic() - self.started_at

    @property
    def at_work(self) -> bool:
        return self.process is not None or self.start_again_at is not None
