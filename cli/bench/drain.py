"""The rate at which one worker empties a full queue."""

from datetime import timedelta
from typing import Any

import awa_py as awa
from awa_py.db.database import Database
from awa_py.model.job import NewJob
from awa_py.settings import Settings

from .handler_counter import HandlerCounter
from .report import Report
from .temporary_schema import QUEUE, insert_other_jobs, temporary_schema
from .worker_run import WorkerRun
from .workload import Bench, random_argument

BATCH_SIZE = 500
LINGER = "50ms"


async def drain(
    bench: Bench,
    *,
    jobs: int,
    concurrency: int | None = None,
    argument_bytes: int = 0,
    batch: bool = False,
    discard: bool = False,
    pinned: bool = False,
    completed: int = 0,
    scheduled: int = 0,
) -> Report:
    """Run jobs that do nothing. Completed jobs are kept unless `discard` is set."""
    counter = HandlerCounter(jobs)
    async with temporary_schema(bench.url) as database:
        app = _app(database, counter, batch=batch, discard=discard)
        with bench.progress.bar("fill"):
            await insert_other_jobs(database, completed=completed, scheduled=scheduled)
        (kind,) = app.registry.kinds
        argument = random_argument(argument_bytes)

        def new(n: int) -> NewJob:
            return app.new(kind, {"n": n, **argument})

        run = WorkerRun(bench, app, counter, jobs=jobs, concurrency=concurrency)
        result = await run.measure("drain", new, pinned=pinned)
    options: dict[str, Any] = {
        "concurrency": concurrency,
        "argument_bytes": argument_bytes,
        "batch": batch,
        "discard": discard,
        "pinned": pinned,
        "completed": completed,
        "scheduled": scheduled,
    }
    return Report(
        workload="drain",
        options={name: value for name, value in options.items() if value},
        jobs=jobs,
        figures={
            "seconds": round(result.seconds, 4),
            "jobs_per_s": result.per_second(jobs),
            "thirds": result.thirds,
        },
        costs=result.costs,
        server=result.server,
    )


def _app(database: Database, counter: HandlerCounter, *, batch: bool, discard: bool) -> awa.App:
    """Return an app with one job. Its settings are the defaults, not those of the environment."""
    settings = Settings(completed_retention=timedelta(0)) if discard else Settings()
    app = awa.App(database.url, schema=database.schema.name, settings=settings)
    if batch:

        @app.job(queue=QUEUE, batch=BATCH_SIZE, linger=LINGER)
        async def count_batch(jobs: list[awa.BatchJob]) -> None:
            counter.add(len(jobs))

    else:

        @app.job(queue=QUEUE)
        async def count_one(n: int, text: str = "") -> None:
            counter.add()

    return app
