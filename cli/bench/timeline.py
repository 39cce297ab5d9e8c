"""What the timeline costs: the same workload with it and without it, by turns."""

from collections.abc import Callable
from datetime import timedelta
from statistics import median

import awa_py as awa
from awa_py.settings import Settings

from .race import Finish, Race
from .report import Report
from .scratch import QUEUE, scratch_schema
from .stopwatch import Stopwatch
from .workload import Bench

NEVER = timedelta(0)
ATTEMPTS = 2  # of a job that fails at first


async def timeline(bench: Bench, *, jobs: int, rounds: int, failing: bool) -> Report:
    """Each round runs it with both, the other one first every other time: what else goes on here slows both down."""
    with_it, without = Settings(), Settings(events_retention=NEVER, rollup_retention=NEVER)
    runs: dict[Settings, list[Finish]] = {with_it: [], without: []}
    for number in range(rounds):
        for settings in (with_it, without) if number % 2 else (without, with_it):
            runs[settings].append(await _race(bench, settings, jobs=jobs, failing=failing))
    pairs = list(zip(runs[with_it], runs[without], strict=True))
    ratios = [off.seconds / on.seconds for on, off in pairs]
    busy = [(_busy_us(off), _busy_us(on)) for on, off in pairs]
    cpu_ratios = [off / on for off, on in busy if off is not None and on is not None]
    return Report(
        workload="timeline",
        options={"failing": True} if failing else {},
        jobs=jobs,
        figures={
            "rounds": rounds,
            "jobs_per_s": median(each.per_second(jobs) for each in runs[with_it]),
            "jobs_per_s_without": median(each.per_second(jobs) for each in runs[without]),
            "ratio": round(median(ratios), 4),
            "ratios": [round(ratio, 4) for ratio in ratios],
            # The same by CPU time, client and server together: that others are at work here changes it less.
            "ratio_of_cpu": round(median(cpu_ratios), 4) if cpu_ratios else None,
        },
        costs=runs[with_it][-1].costs,
        server=runs[with_it][-1].server,
    )


def _busy_us(finish: Finish) -> float | None:
    client, server = (finish.costs.cpu_us_per_job[side] for side in ("client", "server"))
    return None if client is None or server is None else client + server


async def _race(bench: Bench, settings: Settings, *, jobs: int, failing: bool) -> Finish:
    attempts = ATTEMPTS if failing else 1
    stopwatch = Stopwatch(attempts * jobs)
    async with scratch_schema(bench.url) as database:
        app = awa.App(database.url, schema=database.schema.name, settings=settings)
        new = (_stumbling if failing else _passing)(app, stopwatch)
        return await Race(bench, app, stopwatch, jobs=jobs).run("timeline", new)


def _passing(app: awa.App, stopwatch: Stopwatch) -> Callable[[int], awa.NewJob]:
    @app.job(queue=QUEUE)
    async def pass_by(n: int) -> None:
        stopwatch.handled()

    return lambda n: pass_by.new(n=n)


def _stumbling(app: awa.App, stopwatch: Stopwatch) -> Callable[[int], awa.NewJob]:
    """All that the timeline ever writes: starts, and what became of them."""

    @app.job(queue=QUEUE)
    async def stumble(ctx: awa.Context, n: int) -> None:
        stopwatch.handled()
        if ctx.attempt < ATTEMPTS:
            raise awa.Retry(after=0)

    return lambda n: stumble.new(n=n)
