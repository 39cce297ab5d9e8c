"""The cost of a job, and the server's settings that influence it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The version and the durability settings, without which no result means anything."""

    server: str
    fsync: bool
    synchronous_commit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Costs per job. None means unknown."""

    wal_bytes_per_job: float | None
    transactions_per_job: float
    cpu_us_per_job: dict[str, float | None]
    dead_tuples_per_job: float
