"""The rate at which jobs complete whose first attempt fails: they are promoted by the leader and claimed again."""

import awa_py as awa
from awa_py.settings import Settings

from .handler_counter import HandlerCounter
from .report import Report
from .temporary_schema import QUEUE, temporary_schema
from .worker_run import WorkerRun
from .workload import Bench

ATTEMPTS = 2


async def retries(bench: Bench, *, jobs: int) -> Report:
    """Run jobs that fail once with an immediate retry, and then complete."""
    counter = HandlerCounter(ATTEMPTS * jobs)
    async with temporary_schema(bench.url) as database:
        app = awa.App(database.url, schema=database.schema.name, settings=Settings())

        @app.job(queue=QUEUE)
        async def fail_once(ctx: awa.Context, n: int) -> None:
            counter.add()
            if ctx.attempt < ATTEMPTS:
                raise awa.Retry(after=0)

        run = WorkerRun(bench, app, counter, jobs=jobs)
        result = await run.measure("retries", lambda n: fail_once.new(n=n))
    return Report(
        workload="retries",
        jobs=jobs,
        figures={
            "seconds": round(result.seconds, 4),
            "attempts_per_s": result.per_second(ATTEMPTS * jobs),
            "jobs_per_s": result.per_second(jobs),
        },
        costs=result.costs,
        server=result.server,
    )
