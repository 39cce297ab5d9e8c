"""The rate at which jobs are enqueued: one by one, in the caller's transactions, in bulk, by concurrent producers."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count, islice

from awa_py.client import POOL_SIZE
from awa_py.connections import Connection
from awa_py.db.database import Database

from ..worker_process import WorkerProcess
from .bench_worker import start_bench_worker, wait_until_ready
from .cost_recorder import recording_costs
from .jobs import app, nothing
from .options import Mode
from .report import Report
from .temporary_schema import temporary_schema
from .workload import Bench, batch_size, batches, random_argument, run_concurrently, warm_up_sessions

PER_TRANSACTION = 100
WARM_UP_JOBS = 30


class Producer:
    """Enqueue jobs and count them."""

    def __init__(self, connection: Connection, producers: int, argument: dict[str, str], *, unique: bool) -> None:
        self._connection = connection
        self._producers = producers
        self._argument = argument
        self._job = nothing.options(unique=True) if unique else nothing
        self._numbers = count()  # never the same twice, so that no job is a duplicate
        self.count = 0

    def method(self, mode: Mode) -> Callable[[int], Awaitable[None]]:
        """Return the method that enqueues a number of jobs in this mode."""
        return {
            Mode.ONE: self.one_by_one,
            Mode.TRANSACTION: self.in_transactions,
            Mode.BULK: self.in_bulk,
            Mode.PRODUCERS: self.concurrently,
        }[mode]

    async def one_by_one(self, jobs: int) -> None:
        for n in islice(self._numbers, jobs):
            await self._job.enqueue(n=n, **self._argument)
            self.count += 1

    async def in_transactions(self, jobs: int) -> None:
        """Enqueue on the caller's own connection, as an application does with its other writes."""
        for numbers in batches(jobs, PER_TRANSACTION):
            async with self._connection.transaction():
                inside = self._job.options(connection=self._connection)
                for n in islice(self._numbers, len(numbers)):
                    await inside.enqueue(n=n, **self._argument)
            self.count += len(numbers)

    async def in_bulk(self, jobs: int) -> None:
        """Enqueue many jobs per call. The time includes the creation of the job objects."""
        for numbers in batches(jobs, batch_size(len(self._argument.get("text", "")))):
            new = (self._job.new(n=n, **self._argument) for n in islice(self._numbers, len(numbers)))
            await app.enqueue_many(list(new))
            self.count += len(numbers)

    async def concurrently(self, jobs: int) -> None:
        shares = [len(range(first, jobs, self._producers)) for first in range(self._producers)]
        await run_concurrently([self.one_by_one(share) for share in shares])


async def enqueue(
    bench: Bench,
    *,
    mode: Mode,
    jobs: int,
    argument_bytes: int = 0,
    unique: bool = False,
    producers: int = 1,
    worker: bool = False,
) -> Report:
    """Enqueue jobs. They are executed only if `worker` is set."""
    is_concurrent = mode is Mode.PRODUCERS
    async with temporary_schema(bench.url) as database, recording_costs(database) as recorder:
        with _optional_worker(database, wanted=worker) as process:
            async with _producer(database, producers, random_argument(argument_bytes), unique=unique) as producer:
                send = producer.method(mode)
                with bench.progress.bar("warm up"):
                    if process is not None:
                        await wait_until_ready(process, recorder.connection, database)
                    sessions = POOL_SIZE if is_concurrent else 1
                    await warm_up_sessions(send, jobs=max(WARM_UP_JOBS, producers), sessions=sessions)
                    await recorder.start(*([] if process is None else [process.pid]))
                producer.count = 0
                with bench.progress.bar("enqueue", jobs, lambda: producer.count):
                    started = time.perf_counter()
                    await send(jobs)
                    seconds = time.perf_counter() - started
                await recorder.stop()
        costs = await recorder.costs(jobs)
    options = {
        "mode": mode.value,
        "argument_bytes": argument_bytes,
        "unique": unique,
        "producers": is_concurrent and producers,
        "worker": worker,
    }
    return Report(
        workload="enqueue",
        options={name: value for name, value in options.items() if value},
        jobs=jobs,
        figures={"seconds": round(seconds, 4), "jobs_per_s": round(jobs / seconds, 1)},
        costs=costs,
        server=recorder.server,
    )


@asynccontextmanager
async def _producer(
    database: Database, producers: int, argument: dict[str, str], *, unique: bool
) -> AsyncIterator[Producer]:
    app.connect_to(database)
    connection = await database.connect("client")
    try:
        async with app:
            yield Producer(connection, producers, argument, unique=unique)
    finally:
        await connection.close()


@contextmanager
def _optional_worker(database: Database, *, wanted: bool) -> Iterator[WorkerProcess | None]:
    if not wanted:
        yield None
        return
    with start_bench_worker(database) as process:
        yield process
        process.check()
