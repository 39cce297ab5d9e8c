"""What a run left behind: the handlers' log, the tables, what producers were told, and when which fault happened."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from awa_py.connections import DedicatedConnection
from tests.chaos.cluster import Life
from tests.chaos.faults.base import Record
from tests.chaos.producers import Order

ROWS = """
    SELECT id, kind, state, attempt, max_attempts, lease, (args ->> 'n')::bigint AS n, result ->> 'nonce' AS nonce,
           extract(epoch FROM created_at)::float8 AS created_at,
           extract(epoch FROM finalized_at)::float8 AS finalized_at, metadata ->> 'fire_time' AS fire_time
    FROM awa.jobs ORDER BY id
"""
TABLES = ("ready", "scheduled", "running", "completed", "dead")
UNPAIRED = f"""
    SELECT coalesce(job_id, id) AS id, job_id IS NULL AS is_job
    FROM awa.payloads
    FULL JOIN ({" UNION ALL ".join(f"SELECT id FROM awa.{table} WHERE args IS NULL" for table in TABLES)}) AS jobs
        ON job_id = id
    WHERE job_id IS NULL OR id IS NULL
    ORDER BY 1
"""
# A claim commits asynchronously: the WAL writer flushes it within three of its delays of 200 ms, if the disk is fast.
ASYNC_COMMIT_S = 2.0
DURABLE_KINDS = {"ordered", "twice"}
TOLD_AFTER_S = 2.0  # how long after a freeze a handler may go on until its worker has noticed that its lease is lost


@dataclass(slots=True, kw_only=True)
class Start:
    """One start of a handler for one job."""

    at: float
    nonce: str
    job: int
    kind: str
    attempt: int
    lease: int
    n: int | None
    key: str | None
    pid: int
    claim_age_s: float
    lease_age_s: float
    ended: float | None = None  # None: it still runs, or its process was killed
    how: str = "killed"
    row_lease: int | None = None  # what it found in its own row, for the kind that looks
    looked_after_s: float | None = None

    @property
    def claimed_at(self) -> float:
        return self.at - self.claim_age_s


@dataclass(slots=True, frozen=True, kw_only=True)
class Row:
    """A job as the database shows it after the run."""

    id: int
    kind: str
    state: str
    attempt: int
    max_attempts: int
    lease: int
    n: int | None
    nonce: str | None
    created_at: float
    finalized_at: float | None
    fire_time: str | None


@dataclass(slots=True, kw_only=True)
class Evidence:
    """Everything that the checker looks at."""

    starts: Sequence[Start]
    rows: Sequence[Row]
    orders: Sequence[Order]
    written_orders: frozenset[int] = frozenset()  # numbers in the table of the application
    unpaired: Sequence[tuple[int, bool]] = ()  # jobs without their payload (True), payloads without a job (False)
    faults: Sequence[Record] = ()
    lives: Sequence[Life] = ()
    elections: Sequence[tuple[str, int]] = ()  # process and epoch
    staleness_s: float = 5.0
    key_limit: int = 2
    by_job: Mapping[int, list[Start]] = field(init=False)
    life_of: Mapping[int, Life] = field(init=False)

    def __post_init__(self) -> None:
        by_job: defaultdict[int, list[Start]] = defaultdict(list)
        for start in sorted(self.starts, key=lambda start: start.at):
            by_job[start.job].append(start)
        self.by_job = by_job
        self.life_of = {life.pid: life for life in self.lives}

    def may_have_lost_its_claim(self, start: Start) -> bool:
        """Return whether a crash of PostgreSQL may have taken back the claim: most claims commit asynchronously."""
        return start.kind not in DURABLE_KINDS and any(
            began - ASYNC_COMMIT_S <= start.claimed_at <= ended
            for fault in self.faults
            for began, ended in fault.crashes
        )

    def was_frozen(self, start: Start, until: float) -> bool:
        """Return whether its process was frozen for so long that its leases ran out, after the claim."""
        return any(began < until and ended > start.claimed_at for began, ended in self.long_freezes(start.pid))

    def long_freezes(self, pid: int) -> Iterator[tuple[float, float]]:
        life = self.life_of.get(pid)
        for began, ended in life.frozen if life else ():
            if ended - began > self.staleness_s * 0.7:  # the lease was already up to a heartbeat old
                yield began, ended

    def was_killed(self, start: Start, until: float) -> bool:
        life = self.life_of.get(start.pid)
        return life is not None and life.killed and life.ended is not None and life.ended <= until

    def was_cut_off(self, start: Start, until: float, *, min_s: float) -> bool:
        """Return whether its worker, unlike others, could not reach PostgreSQL for some time after the claim."""
        life = self.life_of.get(start.pid)
        return life is not None and any(
            name == life.name and began < until and ended > start.claimed_at and ended - began >= min_s
            for fault in self.faults
            for name, began, ended in fault.cut_off
        )

    def end_of(self, start: Start) -> float:
        """Return when the handler ended: a killed one with its process."""
        life = self.life_of.get(start.pid)
        return start.ended or (life.ended if life and life.ended else start.at)

    def running(self, start: Start) -> list[tuple[float, float]]:
        """Return when the handler ran: a frozen one does not, and is told soon after it continues."""
        end = self.end_of(start)
        spans, begin = [], start.at
        for began, ended in self.long_freezes(start.pid):
            if begin <= began < end:
                spans.append((begin, began))
                begin = min(ended + TOLD_AFTER_S, end)
        return [*spans, (begin, end)]


def read_starts(log: Path) -> list[Start]:
    """Read the handlers' log."""
    starts: dict[str, Start] = {}
    for line in log.read_text().splitlines() if log.exists() else ():
        entry: dict[str, Any] = json.loads(line)
        match entry.pop("event"):
            case "start":
                starts[entry["nonce"]] = Start(**entry)
            case "end":
                start = starts[entry["nonce"]]
                start.ended, start.how = entry["at"], entry["how"]
            case "look":
                start = starts[entry["nonce"]]
                start.row_lease, start.looked_after_s = entry["lease"], entry["took_s"]
    return list(starts.values())


def read_elections(logs: Iterable[Path]) -> list[tuple[str, int]]:
    """Read the epochs from the logs of all processes."""
    elections = []
    for log in logs:
        for line in log.read_text(errors="replace").splitlines():
            _, found, epoch = line.partition("elected as the leader, epoch ")
            if found:
                elections.append((log.stem, int("".join(filter(str.isdigit, epoch.split('"')[0])))))
    return elections


async def read_rows(connection: DedicatedConnection) -> list[Row]:
    return [Row(**dict(row)) for row in await connection.fetch(ROWS)]


async def read_unpaired(connection: DedicatedConnection) -> list[tuple[int, bool]]:
    """Read the ids of jobs without their payload (True), and of payloads without a job (False)."""
    return [(row["id"], row["is_job"]) for row in await connection.fetch(UNPAIRED)]
