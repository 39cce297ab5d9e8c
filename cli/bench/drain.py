"""The rate at which workers empty full queues."""

import asyncio
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from threading import Lock
from typing import Any

import awa_py as awa
from awa_py.db.database import Database
from awa_py.errors import ConfigError
from awa_py.model.job import NewJob
from awa_py.settings import Settings

from . import jobs as worker_jobs
from .handler_counter import HandlerCounter
from .process_run import ProcessRun
from .report import Report
from .temporary_schema import QUEUE, insert_other_jobs, limit_queue, temporary_schema
from .worker_run import RunResult, WorkerRun
from .workload import Bench, random_argument

BATCH_SIZE = 500
LINGER = "50ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainOptions:
    """The jobs, their handler, their queues and the worker. Completed jobs are kept unless `discard` is set."""

    concurrency: int | None = None
    processes: int | None = None
    queues: int = 1
    max_workers: int | None = None
    argument_bytes: int = 0
    handler_ms: int = 0
    sync: bool = False
    batch: bool = False
    discard: bool = False
    pinned: bool = False
    completed: int = 0
    scheduled: int = 0

    def __post_init__(self) -> None:
        if self.batch and self.sync:
            raise ConfigError("leave out --batch or --sync: the benchmark has no sync batch handler")
        if self.processes and (self.batch or self.sync or self.handler_ms or self.discard or self.queues > 1):
            raise ConfigError(
                "--processes cannot be combined with --batch, --sync, --handler-ms, --discard or --queues"
            )
        if self.max_workers and self.queues > 1:
            raise ConfigError("--max-workers cannot be combined with --queues: it is a limit of one queue")

    def as_shown(self) -> dict[str, Any]:
        """Return the options that differ from their defaults."""
        defaults = asdict(DrainOptions())
        return {name: value for name, value in asdict(self).items() if value != defaults[name]}


async def drain(bench: Bench, *, jobs: int, **options: Any) -> Report:
    """Run jobs that do nothing, or only wait. `options` are those of DrainOptions."""
    chosen = DrainOptions(**options)
    async with temporary_schema(bench.url) as database:
        with bench.progress.bar("fill"):
            await insert_other_jobs(database, completed=chosen.completed, scheduled=chosen.scheduled)
            if chosen.max_workers:
                await limit_queue(database, chosen.max_workers)
        measure = _measure_processes if chosen.processes else _measure_worker
        result = await measure(bench, database, jobs, chosen)
    return Report(
        workload="drain",
        options=chosen.as_shown(),
        jobs=jobs,
        figures={
            "seconds": round(result.seconds, 4),
            "jobs_per_s": result.per_second(jobs),
            "thirds": result.thirds,
        },
        costs=result.costs,
        server=result.server,
    )


async def _measure_worker(bench: Bench, database: Database, jobs: int, options: DrainOptions) -> RunResult:
    """Run the jobs in this process."""
    counter = HandlerCounter(jobs, asyncio.get_running_loop())
    app = _app(database, counter, options)
    (kind,) = app.registry.kinds
    queues = [QUEUE, *(f"{QUEUE}-{number}" for number in range(1, options.queues))]
    argument = random_argument(options.argument_bytes)

    def new(n: int) -> NewJob:
        return app.new(kind, {"n": n, **argument}, queue=queues[n % len(queues)])

    run = WorkerRun(bench, app, counter, jobs=jobs, concurrency=options.concurrency, queues=queues)
    return await run.measure("drain", new, pinned=options.pinned, argument_bytes=options.argument_bytes)


async def _measure_processes(bench: Bench, database: Database, jobs: int, options: DrainOptions) -> RunResult:
    """Run the jobs in the processes of `awa worker --processes`."""
    app = worker_jobs.app
    app.connect_to(database)
    argument = random_argument(options.argument_bytes)

    def new(n: int) -> NewJob:
        return worker_jobs.nothing.new(n=n, **argument)

    assert options.processes is not None
    run = ProcessRun(bench, app, jobs=jobs, processes=options.processes, concurrency=options.concurrency)
    return await run.measure("drain", new, pinned=options.pinned, argument_bytes=options.argument_bytes)


def _app(database: Database, counter: HandlerCounter, options: DrainOptions) -> awa.App:
    """Return an app with one job. Its settings are the defaults, not those of the environment."""
    settings = Settings(completed_retention=timedelta(0)) if options.discard else Settings()
    app = awa.App(database.url, schema=database.schema.name, settings=settings)
    wait_s = options.handler_ms / 1000
    if options.batch:

        @app.job(queue=QUEUE, batch=BATCH_SIZE, linger=LINGER)
        async def count_batch(jobs: list[awa.BatchJob]) -> None:
            counter.add(len(jobs))
            if wait_s:
                await asyncio.sleep(wait_s)

    elif options.sync:
        lock = Lock()

        @app.job(queue=QUEUE)
        def count_in_thread(n: int, text: str = "") -> None:
            with lock:
                counter.add()
            if wait_s:
                time.sleep(wait_s)

    else:

        @app.job(queue=QUEUE)
        async def count_one(n: int, text: str = "") -> None:
            counter.add()
            if wait_s:
                await asyncio.sleep(wait_s)

    return app
