"""How fast jobs are enqueued: one by one, in one's own transactions, in bulk, by many producers at once."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from awa_py.client import POOL_SIZE
from awa_py.db.database import Database
from awa_py.db.types import Connection

from ..beside import Beside
from .beside import bench_worker, until_ready
from .jobs import app, nothing
from .meter import metered
from .options import Mode
from .report import Report
from .scratch import scratch_schema
from .workload import Bench, all_of, calls, settle

PER_TRANSACTION = 100
WARM_UP = 30


class Enqueuer:
    """Enqueues, and counts what it has enqueued."""

    def __init__(self, connection: Connection, producers: int) -> None:
        self._connection = connection
        self._producers = producers
        self.count = 0

    def way(self, mode: Mode) -> Callable[[int], Awaitable[None]]:
        """How to enqueue so many."""
        return {
            Mode.ONE: self.one_by_one,
            Mode.TRANSACTION: self.in_transactions,
            Mode.BULK: self.in_bulk,
            Mode.PRODUCERS: self.at_once,
        }[mode]

    async def one_by_one(self, jobs: int) -> None:
        for n in range(jobs):
            await nothing.enqueue(n=n)
            self.count += 1

    async def in_transactions(self, jobs: int) -> None:
        """Through a connection of one's own, as beside other writes."""
        for numbers in calls(jobs, PER_TRANSACTION):
            async with self._connection.transaction():
                inside = nothing.options(connection=self._connection)
                for n in numbers:
                    await inside.enqueue(n=n)
            self.count += len(numbers)

    async def in_bulk(self, jobs: int) -> None:
        """Making the jobs is part of it."""
        for numbers in calls(jobs):
            await app.enqueue_many([nothing.new(n=n) for n in numbers])
            self.count += len(numbers)

    async def at_once(self, jobs: int) -> None:
        shares = [len(range(first, jobs, self._producers)) for first in range(self._producers)]
        await all_of([self.one_by_one(share) for share in shares])


async def enqueue(bench: Bench, *, mode: Mode, jobs: int, producers: int = 1, worker: bool = False) -> Report:
    """Nobody runs the jobs, unless a worker is wanted beside."""
    many = mode is Mode.PRODUCERS
    async with scratch_schema(bench.url) as database, metered(database) as meter:
        with _worker(database, wanted=worker) as beside:
            async with _producer(database, producers) as producer:
                send = producer.way(mode)
                with bench.progress.bar("warm up"):
                    if beside is not None:
                        await until_ready(beside, meter.connection, database)
                    await settle(send, jobs=max(WARM_UP, producers), sessions=POOL_SIZE if many else 1)
                    await meter.start(*([] if beside is None else [beside.pid]))
                producer.count = 0
                with bench.progress.bar("enqueue", jobs, lambda: producer.count):
                    began = time.perf_counter()
                    await send(jobs)
                    seconds = time.perf_counter() - began
                await meter.stop()
        costs = await meter.costs(jobs)
    chosen = {"mode": mode.value, "producers": many and producers, "worker": worker}
    return Report(
        workload="enqueue",
        options={name: value for name, value in chosen.items() if value},
        jobs=jobs,
        figures={"seconds": round(seconds, 4), "jobs_per_s": round(jobs / seconds, 1)},
        costs=costs,
        server=meter.server,
    )


@asynccontextmanager
async def _producer(database: Database, producers: int) -> AsyncIterator[Enqueuer]:
    app.connect_to(database)
    own = await database.connect("client")
    try:
        async with app:
            yield Enqueuer(own, producers)
    finally:
        await own.close()


@contextmanager
def _worker(database: Database, *, wanted: bool) -> Iterator[Beside | None]:
    if not wanted:
        yield None
        return
    with bench_worker(database) as beside:
        yield beside
        beside.check()
