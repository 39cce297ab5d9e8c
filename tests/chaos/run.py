"""One run: load, faults, quiet, and the check of the promises."""

import asyncio
import contextlib
import json
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import asyncpg

from awa_py.db.errors import CONNECTION_LOST
from tests.chaos import evidence as read
from tests.chaos import handlers
from tests.chaos.checker import Violation, check
from tests.chaos.cluster import STALENESS_S, Cluster
from tests.chaos.evidence import Evidence
from tests.chaos.faults import ALL, Fault, Record, schedule
from tests.chaos.history import history
from tests.chaos.producers import CREATE_ORDERS, Producers
from tests.chaos.recovery import Recovery, recoveries

WARM_UP_TIMEOUT_S = 60.0
SETTLE_S = 60.0  # without any change: then it has not settled
UNFINISHED = "SELECT count(*) FROM awa.jobs WHERE state NOT IN ('completed', 'failed', 'cancelled')"
FINISHED = "SELECT count(*) FROM awa.jobs WHERE state IN ('completed', 'failed', 'cancelled')"
MAX_HISTORIES = 2  # for each promise


@dataclass(slots=True, kw_only=True)
class Result:
    """The outcome of a run."""

    seed: int
    seconds: float
    jobs: dict[str, int]  # by what their producers were told
    states: dict[str, int]
    starts: int
    settled_s: float
    faults: list[Recovery]
    skipped: list[str]
    violations: list[Violation]
    histories: list[str]
    directory: str

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "histories": []}


class Run:
    """Runs the faults of a seed for some time, and checks what is left."""

    def __init__(
        self, seed: int, seconds: float, *, kinds: tuple[type[Fault], ...] = ALL, directory: Path | None = None
    ) -> None:
        self._seed = seed
        self._seconds = seconds
        self._kinds = kinds
        self.cluster = Cluster(directory=directory)
        self._records: list[Record] = []

    async def execute(self) -> Result:
        asyncio.get_running_loop().set_exception_handler(_ignore_lost_connections)
        async with self.cluster as cluster:
            async with cluster.primary.connection() as connection:
                await connection.execute(CREATE_ORDERS)
            producers = Producers(cluster.producers.url(cluster.primary.postgres.url), self._seed)
            await producers.start()
            try:
                await self._warm_up()
                began = time.time()
                await self._cause_faults(began)
                await producers.stop()
                settled_s = await self._settle()
            finally:
                await producers.close()
            found = await self._gather(producers)
            violations = check(found)
            return Result(
                seed=self._seed,
                seconds=round(time.time() - began, 1),
                jobs=producers.counts(),
                states=dict(Counter(row.state for row in found.rows)),
                starts=len(found.starts),
                settled_s=round(settled_s, 1),
                faults=recoveries(found, began),
                skipped=[f"{record}: {record.skipped}" for record in self._records if record.skipped],
                violations=violations,
                histories=await self._histories(found, violations),
                directory=str(cluster.directory),
            )

    async def _warm_up(self) -> None:
        """Wait until the processes have started and jobs complete."""
        deadline = time.monotonic() + WARM_UP_TIMEOUT_S
        async with self.cluster.primary.connection() as connection:
            while await connection.fetchval("SELECT count(*) FROM awa.completed") < 20:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"no jobs complete: see the logs in {self.cluster.directory}")
                await asyncio.sleep(0.2)

    async def _cause_faults(self, began: float) -> None:
        async with asyncio.TaskGroup() as background:
            for pause_s, faults in schedule(self._seed, self._kinds):
                await asyncio.sleep(pause_s)
                if time.time() - began > self._seconds:
                    return
                if faults[0].background:
                    background.create_task(self._cause(faults, began))
                else:
                    await self._cause(faults, began)
                    self._restart_crashed_nodes(faults[0].record)

    async def _cause(self, faults: Sequence[Fault], began: float) -> None:
        """Cause faults at the same time. The last one to end decides when everything can go on."""
        await asyncio.gather(*(self._cause_one(fault, began) for fault in faults))
        healed = max(fault.record.healed for fault in faults)
        for fault in faults:
            fault.record.healed = healed

    async def _cause_one(self, fault: Fault, began: float) -> None:
        record = fault.record
        self._records.append(record)
        record.began = time.time()
        record.skipped = fault.impossible(self.cluster)
        if not record.skipped:
            await fault.run(self.cluster)
        record.ended = time.time()
        record.healed = record.healed or record.ended
        words = [record.name, record.detail, f"skipped: {record.skipped}" if record.skipped else ""]
        print(f"{record.began - began:6.1f} s  {' · '.join(filter(None, words))}", flush=True)

    def _restart_crashed_nodes(self, record: Record) -> None:
        for node in self.cluster.crashed_nodes():
            record.violations.append(f"{node.name} ended by itself")
            node.start()

    async def _settle(self) -> float:
        """Wait until every job has ended, or nothing changes any more. Return the seconds that this took."""
        began = changed = time.monotonic()
        before = -1
        # Schedules go on forever: their last jobs are waited for like any other.
        while True:
            with contextlib.suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                async with self.cluster.primary.connection() as connection:
                    await connection.execute("UPDATE awa.cron SET paused = true WHERE NOT paused")
                    if not await connection.fetchval(UNFINISHED):
                        return time.monotonic() - began
                    finished = await connection.fetchval(FINISHED)
                if finished != before:
                    before, changed = finished, time.monotonic()
            if time.monotonic() - changed > SETTLE_S:
                return time.monotonic() - began
            await asyncio.sleep(0.2)

    async def _gather(self, producers: Producers) -> Evidence:
        async with self.cluster.primary.connection() as connection:
            rows = await read.read_rows(connection)
            unpaired = await read.read_unpaired(connection)
            written = {row["n"] for row in await connection.fetch("SELECT n FROM orders")}
        directory = self.cluster.directory
        (directory / "orders.json").write_text(json.dumps([asdict(order) for order in producers.orders]))
        (directory / "faults.json").write_text(json.dumps([asdict(record) for record in self._records]))
        (directory / "rows.json").write_text(json.dumps([asdict(row) for row in rows]))
        return Evidence(
            starts=read.read_starts(self.cluster.attempts_log),
            rows=rows,
            orders=producers.orders,
            written_orders=frozenset(written),
            unpaired=unpaired,
            faults=self._records,
            lives=[life for node in self.cluster.nodes for life in node.lives],
            elections=read.read_elections(directory / f"{node.name}.log" for node in self.cluster.nodes),
            staleness_s=STALENESS_S,
            key_limit=handlers.KEY_LIMIT,
        )

    async def _histories(self, found: Evidence, violations: list[Violation]) -> list[str]:
        """Return the histories of the first jobs that show a violation of each promise."""
        shown: defaultdict[str, list[int]] = defaultdict(list)
        for violation in violations:
            shown[violation.promise] += violation.jobs
        jobs = list(dict.fromkeys(job for ids in shown.values() for job in ids[:MAX_HISTORIES]))
        if not jobs:
            return []
        async with self.cluster.primary.connection() as connection:
            return [await history(connection, found, job, self.cluster.directory) for job in jobs]


def _ignore_lost_connections(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report errors of tasks, but not those of connections that a pool gave up."""
    if not isinstance(context.get("exception"), CONNECTION_LOST):
        loop.default_exception_handler(context)
