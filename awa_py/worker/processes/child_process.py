"""A child process of the supervisor."""

import socket
import subprocess
import time
from dataclasses import dataclass, field

from awa_py.observability.metrics import ProcessStats


@dataclass(slots=True)
class ChildProcess:
    """One of the numbered children. The process changes when it is restarted, the number and the socket stay."""

    number: int
    metrics_socket: socket.socket | None = None  # inherited by each process with this number
    process: "subprocess.Popen[bytes] | None" = None
    starts: int = 0
    started_at: float = 0.0  # by the monotonic clock, like all times here
    restart_at: float | None = None
    failures: int = 0  # in a row
    failed_to_start: bool = False
    has_started: bool = False  # one of its processes has reported that it started
    is_ready: bool = False
    is_aborted: bool = False
    last_report_at: float = 0.0
    stats: ProcessStats = field(default_factory=ProcessStats)

    @property
    def age_s(self) -> float:
        """Return the seconds since its last start."""
        return time.monotonic() - self.started_at

    @property
    def is_active(self) -> bool:
        """Return True if it runs or will be restarted."""
        return self.process is not None or self.restart_at is not None
