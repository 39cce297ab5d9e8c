"""What the database tells a worker about its queues, and about itself."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from awa_py.db.types import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDirectives:
    """What a worker is to do about one of its queues."""

    slots: int | None = None  # how many of its jobs to run at the most; None: as the worker was started
    limited: bool = False  # it has max_workers or a rate: claims have to keep within them
    rate: float | None = None  # how many of its jobs may begin in a second, in the whole cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Directives:
    """What a worker is to do."""

    queues: Mapping[str, QueueDirectives] = field(default_factory=dict)
    quiet: bool = False  # claims nothing more, and lets what runs finish
    stop: bool = False


def directives_from(rows: Iterable[Record], before: Directives) -> Directives:
    """What `heartbeat_worker` answered. A queue that has lost its row is treated as before."""
    queues = dict(before.queues)
    quiet, stop = before.quiet, before.stop
    for row in rows:
        quiet, stop = row["quiet"], row["stopping"]
        if row["is_known"]:
            queues[row["queue"]] = QueueDirectives(slots=row["slots"], limited=row["limited"], rate=row["rate"])
    return Directives(queues=queues, quiet=quiet, stop=stop)
