"""How fast jobs come back after a failed attempt: through the leader's promotion, and claimed once more."""

import awa_py as awa
from awa_py.settings import Settings

from .race import Race
from .report import Report
from .scratch import QUEUE, scratch_schema
from .stopwatch import Stopwatch
from .workload import Bench

ATTEMPTS = 2


async def retries(bench: Bench, *, jobs: int) -> Report:
    """Each job fails once, asks to be tried again at once, and completes."""
    stopwatch = Stopwatch(ATTEMPTS * jobs)
    async with scratch_schema(bench.url) as database:
        app = awa.App(database.url, schema=database.schema.name, settings=Settings())

        @app.job(queue=QUEUE)
        async def stumble(ctx: awa.Context, n: int) -> None:
            stopwatch.handled()
            if ctx.attempt < ATTEMPTS:
                raise awa.Retry(after=0)

        race = Race(bench, app, stopwatch, jobs=jobs)
        finish = await race.run("retries", lambda n: stumble.new(n=n))
    return Report(
        workload="retries",
        jobs=jobs,
        figures={
            "seconds": round(finish.seconds, 4),
            "attempts_per_s": finish.per_second(ATTEMPTS * jobs),
            "jobs_per_s": finish.per_second(jobs),
        },
        costs=finish.costs,
        server=finish.server,
    )
