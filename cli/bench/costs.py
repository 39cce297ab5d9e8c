"""What each job cost, and on what server."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What no figure should be read without."""

    server: str
    fsync: bool
    synchronous_commit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """For each job; None where it cannot be known."""

    wal_bytes_per_job: float | None
    transactions_per_job: float
    cpu_us_per_job: dict[str, float | None]
    dead_tuples_per_job: float
