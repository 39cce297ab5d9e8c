"""How fast one worker empties a full queue."""

from datetime import timedelta
from typing import Any

import awa_py as awa
from awa_py.db.database import Database
from awa_py.model.job import NewJob
from awa_py.settings import Settings

from .race import Race
from .report import Report
from .scratch import QUEUE, fill, scratch_schema
from .stopwatch import Stopwatch
from .workload import Bench

BATCH = 500
LINGER = "50ms"


async def drain(
    bench: Bench,
    *,
    jobs: int,
    concurrency: int | None = None,
    batch: bool = False,
    discard: bool = False,
    pinned: bool = False,
    completed: int = 0,
    scheduled: int = 0,
) -> Report:
    """Jobs that do nothing, with history kept unless `discard` says otherwise."""
    stopwatch = Stopwatch(jobs)
    async with scratch_schema(bench.url) as database:
        app = _app(database, stopwatch, batch=batch, discard=discard)
        with bench.progress.bar("fill"):
            await fill(database, completed=completed, scheduled=scheduled)
        (kind,) = app.registry.kinds

        def new(n: int) -> NewJob:
            return app.new(kind, {"n": n})

        race = Race(bench, app, stopwatch, jobs=jobs, concurrency=concurrency)
        finish = await race.run("drain", new, pinned=pinned)
    given: dict[str, Any] = {
        "concurrency": concurrency,
        "batch": batch,
        "discard": discard,
        "pinned": pinned,
        "completed": completed,
        "scheduled": scheduled,
    }
    return Report(
        workload="drain",
        options={name: value for name, value in given.items() if value},
        jobs=jobs,
        figures={
            "seconds": round(finish.seconds, 4),
            "jobs_per_s": finish.per_second(jobs),
            "thirds": finish.thirds,
        },
        costs=finish.costs,
        server=finish.server,
    )


def _app(database: Database, stopwatch: Stopwatch, *, batch: bool, discard: bool) -> awa.App:
    """An app with one job, at default settings whatever the environment says."""
    settings = Settings(completed_retention=timedelta(0)) if discard else Settings()
    app = awa.App(database.url, schema=database.schema.name, settings=settings)
    if batch:

        @app.job(queue=QUEUE, batch=BATCH, linger=LINGER)
        async def absorb(jobs: list[awa.BatchJob]) -> None:
            stopwatch.handled(len(jobs))

    else:

        @app.job(queue=QUEUE)
        async def pass_by(n: int) -> None:
            stopwatch.handled()

    return app
