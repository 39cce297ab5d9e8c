"""A place for one of several processes, and how the process that holds it is."""

import subprocess
from dataclasses import dataclass, field

from awa_py.metrics import Figures


@dataclass(slots=True)
class Child:
    """A place for a process, and the process that holds it now."""

    number: int
    process: "subprocess.Popen[bytes] | None" = None
    starts: int = 0
    started_at: float = 0.0
    failures: int = 0
    got_to_work: bool = False
    is_ready: bool = False
    failed_to_start: bool = False
    heard_at: float = 0.0  # by the clock of started_at
    is_aborted: bool = False
    figures: Figures = field(default_factory=Figures)
    start_again_at: float | None = None

    @property
    def at_work(self) -> bool:
        return self.process is not None or self.start_again_at is not None
