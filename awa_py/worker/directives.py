"""Directives: settings that the database sends to a worker with each heartbeat."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from awa_py.connections import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDirectives:
    """The directives for one queue."""

    slots: int | None = None  # the worker's share of max_workers; None: the queue has no such limit
    limited: bool = False  # the queue has max_workers or a rate: use the limited claim
    rate: float | None = None  # jobs that may start per second in the whole cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Directives:
    """What the worker has to do."""

    queues: Mapping[str, QueueDirectives] = field(default_factory=dict)
    quiet: bool = False  # claim nothing and finish the running jobs
    stop: bool = False


def directives_from(rows: Iterable[Record], previous: Directives) -> Directives:
    """Return the directives in the rows of `heartbeat_worker`. A queue that was deleted keeps its previous ones."""
    queues = dict(previous.queues)
    quiet, stop = previous.quiet, previous.stop
    for row in rows:
        quiet, stop = row["quiet"], row["stopping"]
        if row["is_known"]:
            queues[row["queue"]] = QueueDirectives(slots=row["slots"], limited=row["limited"], rate=row["rate"])
    return Directives(queues=queues, quiet=quiet, stop=stop)
