"""awa bench …"""

import typer
from typer.core import TyperGroup

from ..decorators import command, common_options
from ..environment import Environment
from ..logs import LogLevel
from ..parsing import JsonOption
from .measure import measure
from .options import (
    DEFAULT_JOBS,
    ArgumentBytes,
    Batch,
    Completed,
    Concurrency,
    Discard,
    EnqueuedJobs,
    Failing,
    HandlerMs,
    Jobs,
    MaxWorkers,
    Mode,
    ModeOption,
    Pinned,
    Processes,
    Producers,
    Queues,
    Quick,
    Rate,
    Rounds,
    Scheduled,
    Seconds,
    Sync,
    Unique,
    WithWorker,
)
from .report import Report, show_all, show_one
from .workload import Bench

# Workloads are imported when they run, because they create an app, which reads the environment.

QUIET = LogLevel.ERROR  # do not log thousands of intended failures

app = typer.Typer(invoke_without_command=True)


@app.callback(epilog="Example: [bold]awa bench drain --jobs 20000[/bold]")
@common_options
def bench(ctx: typer.Context, quick: Quick = False, as_json: JsonOption = False) -> None:
    """Measure the speed on this machine, and the cost of each job.

    Without a workload's name, run all workloads.

    Each workload runs in a temporary schema: in the database that an option
    names, else on a temporary PostgreSQL server. The database that the
    environment names is not used, because it may be in production.
    """
    root = ctx.find_root()
    root.obj = {**(root.obj or {}), **ctx.obj}
    if ctx.invoked_subcommand is not None:
        if quick or as_json:
            raise typer.BadParameter(f"write the options of {ctx.invoked_subcommand} after its name")
        return
    flags = [flag for flag, wanted in (("--quick", quick), ("--json", as_json)) if wanted]
    assert isinstance(ctx.command, TyperGroup)
    chosen = ctx.command.commands["all"]
    with chosen.make_context("all", flags, parent=ctx) as inner:
        chosen.invoke(inner)


@command(app, "awa bench drain --jobs 20000 --pinned")
def drain(
    env: Environment,
    jobs: Jobs = 20_000,
    concurrency: Concurrency = None,
    processes: Processes = None,
    queues: Queues = 1,
    max_workers: MaxWorkers = None,
    argument_bytes: ArgumentBytes = 0,
    handler_ms: HandlerMs = 0,
    sync: Sync = False,
    batch: Batch = False,
    discard: Discard = False,
    pinned: Pinned = False,
    completed: Completed = 0,
    scheduled: Scheduled = 0,
    as_json: JsonOption = False,
) -> None:
    """Measure how fast a worker empties a full queue.

    The time runs from the first handler's start until all outcomes are durable. The rate of each third is shown, too.
    """

    async def work(bench: Bench) -> Report:
        from .drain import drain

        return await drain(
            bench,
            jobs=jobs,
            concurrency=concurrency,
            processes=processes,
            queues=queues,
            max_workers=max_workers,
            argument_bytes=argument_bytes,
            handler_ms=handler_ms,
            sync=sync,
            batch=batch,
            discard=discard,
            pinned=pinned,
            completed=completed,
            scheduled=scheduled,
        )

    show_one(measure(env, work, as_json=as_json), as_json=as_json)


@command(app, "awa bench enqueue --mode bulk")
def enqueue(
    env: Environment,
    mode: ModeOption = Mode.ONE,
    jobs: EnqueuedJobs = None,
    argument_bytes: ArgumentBytes = 0,
    unique: Unique = False,
    producers: Producers = 32,
    worker: WithWorker = False,
    as_json: JsonOption = False,
) -> None:
    """Measure how fast jobs are enqueued."""

    async def work(bench: Bench) -> Report:
        from .enqueue import enqueue

        return await enqueue(
            bench,
            mode=mode,
            jobs=jobs or DEFAULT_JOBS[mode],
            argument_bytes=argument_bytes,
            unique=unique,
            producers=producers,
            worker=worker,
        )

    show_one(measure(env, work, as_json=as_json), as_json=as_json)


@command(app, "awa bench latency")
def latency(env: Environment, jobs: Jobs = 300, as_json: JsonOption = False) -> None:
    """Measure how soon an idle worker starts a job.

    The time runs from the return of the enqueue to the start of the handler in another process.
    """

    async def work(bench: Bench) -> Report:
        from .latency import latency

        return await latency(bench, jobs=jobs)

    show_one(measure(env, work, as_json=as_json), as_json=as_json)


@command(app, "awa bench steady --rate 1000")
def steady(env: Environment, rate: Rate = 500.0, seconds: Seconds = 10.0, as_json: JsonOption = False) -> None:
    """Measure how soon jobs start that arrive at a steady rate, at random times."""

    async def work(bench: Bench) -> Report:
        from .latency import steady

        return await steady(bench, rate=rate, seconds=seconds)

    show_one(measure(env, work, as_json=as_json), as_json=as_json)


@command(app, "awa bench punctuality")
def punctuality(env: Environment, jobs: Jobs = 200, as_json: JsonOption = False) -> None:
    """Measure how late scheduled jobs start."""

    async def work(bench: Bench) -> Report:
        from .punctuality import punctuality

        return await punctuality(bench, jobs=jobs)

    show_one(measure(env, work, as_json=as_json), as_json=as_json)


@command(app, "awa bench retries --jobs 5000", log_level=QUIET)
def retries(env: Environment, jobs: Jobs = 5_000, as_json: JsonOption = False) -> None:
    """Measure how fast jobs complete whose first attempt fails."""

    async def work(bench: Bench) -> Report:
        from .retries import retries

        return await retries(bench, jobs=jobs)

    show_one(measure(env, work, as_json=as_json), as_json=as_json)


@command(app, "awa bench timeline --failing", log_level=QUIET)
def timeline(
    env: Environment, jobs: Jobs = 20_000, rounds: Rounds = 7, failing: Failing = False, as_json: JsonOption = False
) -> None:
    """Measure the cost of the job history and the roll-up, in alternating runs with and without them."""

    async def work(bench: Bench) -> Report:
        from .history_cost import history_cost

        return await history_cost(bench, jobs=jobs, rounds=rounds, failing=failing)

    show_one(measure(env, work, as_json=as_json), as_json=as_json)


@command(app, "awa bench all --quick", name="all", log_level=QUIET)
def everything(env: Environment, quick: Quick = False, as_json: JsonOption = False) -> None:
    """Run all workloads and print a table."""

    async def work(bench: Bench) -> tuple[list[Report], int]:
        from .suite import run_all

        return await run_all(bench, quick=quick)

    reports, failures = measure(env, work, as_json=as_json)
    show_all(reports, as_json=as_json)
    if failures:
        raise typer.Exit(1)
