"""The cost of the job history: the same workload with and without it, in alternating runs."""

from collections.abc import Callable
from datetime import timedelta
from statistics import median

import awa_py as awa
from awa_py.settings import Settings

from .handler_counter import HandlerCounter
from .report import Report
from .temporary_schema import QUEUE, temporary_schema
from .worker_run import RunResult, WorkerRun
from .workload import Bench

OFF = timedelta(0)
ATTEMPTS = 2  # of a job whose first attempt fails


async def history_cost(bench: Bench, *, jobs: int, rounds: int, failing: bool) -> Report:
    """Run both variants in each round, in alternating order, so that other load on the machine affects both."""
    history_on, history_off = Settings(), Settings(events_retention=OFF, rollup_retention=OFF)
    results: dict[Settings, list[RunResult]] = {history_on: [], history_off: []}
    for number in range(rounds):
        for settings in (history_on, history_off) if number % 2 else (history_off, history_on):
            results[settings].append(await _run(bench, settings, jobs=jobs, failing=failing))
    pairs = list(zip(results[history_on], results[history_off], strict=True))
    ratios = [off.seconds / on.seconds for on, off in pairs]
    cpu_pairs = [(_cpu_us(off), _cpu_us(on)) for on, off in pairs]
    cpu_ratios = [off / on for off, on in cpu_pairs if off is not None and on is not None]
    return Report(
        workload="timeline",
        options={"failing": True} if failing else {},
        jobs=jobs,
        figures={
            "rounds": rounds,
            "jobs_per_s": median(each.per_second(jobs) for each in results[history_on]),
            "jobs_per_s_without": median(each.per_second(jobs) for each in results[history_off]),
            "ratio": round(median(ratios), 4),
            "ratios": [round(ratio, 4) for ratio in ratios],
            # The ratio of CPU times, client plus server, which other load on the machine affects less.
            "ratio_of_cpu": round(median(cpu_ratios), 4) if cpu_ratios else None,
        },
        costs=results[history_on][-1].costs,
        server=results[history_on][-1].server,
    )


def _cpu_us(result: RunResult) -> float | None:
    client, server = (result.costs.cpu_us_per_job[side] for side in ("client", "server"))
    return None if client is None or server is None else client + server


async def _run(bench: Bench, settings: Settings, *, jobs: int, failing: bool) -> RunResult:
    attempts = ATTEMPTS if failing else 1
    counter = HandlerCounter(attempts * jobs)
    async with temporary_schema(bench.url) as database:
        app = awa.App(database.url, schema=database.schema.name, settings=settings)
        new = (_failing_job if failing else _successful_job)(app, counter)
        return await WorkerRun(bench, app, counter, jobs=jobs).measure("timeline", new)


def _successful_job(app: awa.App, counter: HandlerCounter) -> Callable[[int], awa.NewJob]:
    @app.job(queue=QUEUE)
    async def succeed(n: int) -> None:
        counter.add()

    return lambda n: succeed.new(n=n)


def _failing_job(app: awa.App, counter: HandlerCounter) -> Callable[[int], awa.NewJob]:
    """Fail once: only then does the worker write events, for the start and for the result of an attempt."""

    @app.job(queue=QUEUE)
    async def fail_once(ctx: awa.Context, n: int) -> None:
        counter.add()
        if ctx.attempt < ATTEMPTS:
            raise awa.Retry(after=0)

    return lambda n: fail_once.new(n=n)
