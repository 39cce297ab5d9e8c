"""The options of `awa bench`."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer


class Mode(StrEnum):
    """How jobs are enqueued."""

    ONE = "one"
    TRANSACTION = "transaction"
    BULK = "bulk"
    PRODUCERS = "producers"


# Each takes a few seconds.
DEFAULT_JOBS: Mapping[Mode, int] = {
    Mode.ONE: 3_000,
    Mode.TRANSACTION: 10_000,
    Mode.BULK: 50_000,
    Mode.PRODUCERS: 10_000,
}
MAX_JOBS = 10_000_000


def _number(flag: str, help: str, *, min: int = 1, max: int = MAX_JOBS) -> Any:
    variable = f"AWA_BENCH_{flag.strip('-').replace('-', '_').upper()}"
    return typer.Option(flag, metavar="N", min=min, max=max, envvar=variable, help=help)


def _flag(flag: str, help: str) -> Any:
    return typer.Option(flag, envvar=f"AWA_BENCH_{flag.strip('-').upper()}", help=help)


Jobs = Annotated[int, _number("--jobs", "Number of jobs.")]
EnqueuedJobs = Annotated[
    int | None,
    _number(
        "--jobs",
        f"Number of jobs. Default: {', '.join(f'{jobs:,} ({mode})' for mode, jobs in DEFAULT_JOBS.items())}.",
    ),
]
Concurrency = Annotated[
    int | None, _number("--concurrency", "Number of jobs that the worker runs at once. Default: the worker's default.")
]
ArgumentBytes = Annotated[
    int, _number("--argument-bytes", "Give each job an argument of this many random characters.", min=0, max=10_000_000)
]
HandlerMs = Annotated[
    int, _number("--handler-ms", "Let each handler wait for this many milliseconds.", min=0, max=60_000)
]
Sync = Annotated[bool, _flag("--sync", "Use a sync handler, which runs in a thread.")]
Processes = Annotated[
    int | None,
    _number("--processes", "Run the jobs in `awa worker` with this many processes, not in this process.", max=64),
]
Queues = Annotated[int, _number("--queues", "Number of queues that share the jobs.", max=10_000)]
MaxWorkers = Annotated[
    int | None, _number("--max-workers", "Give the queue this max_workers. Default: no limit.", max=1_000_000)
]
Unique = Annotated[bool, _flag("--unique", "Give each job a unique key.")]
Batch = Annotated[bool, _flag("--batch", "Use a batch handler: up to 500 jobs per call.")]
Discard = Annotated[bool, _flag("--discard", "Delete jobs when they complete, instead of keeping them.")]
Pinned = Annotated[bool, _flag("--pinned", "Hold an old snapshot open, as a forgotten transaction does.")]
Completed = Annotated[int, _number("--completed", "Insert this many completed jobs first.", min=0)]
Scheduled = Annotated[int, _number("--scheduled", "Insert this many jobs first that are due in 30 days.", min=0)]
ModeOption = Annotated[
    Mode,
    typer.Option(
        "--mode",
        metavar="MODE",
        envvar="AWA_BENCH_MODE",
        help="one (one by one), transaction (100 per transaction of the caller), bulk (10,000 per call) or "
        "producers (one by one, concurrently).",
    ),
]
Producers = Annotated[int, _number("--producers", "Number of concurrent producers, for --mode producers.", max=10_000)]
WithWorker = Annotated[bool, _flag("--worker", "Run the jobs at the same time, in a worker process.")]
Rate = Annotated[
    float,
    typer.Option(
        "--rate", metavar="N", min=0.1, max=1_000_000, envvar="AWA_BENCH_RATE", help="Average jobs per second."
    ),
]
Seconds = Annotated[
    float,
    typer.Option("--seconds", metavar="N", min=0.1, max=86_400, envvar="AWA_BENCH_SECONDS", help="Duration."),
]
Rounds = Annotated[int, _number("--rounds", "Number of runs with and without the history.", max=1_000)]
Failing = Annotated[bool, _flag("--failing", "Let the first attempt of each job fail, which writes more events.")]
Quick = Annotated[bool, _flag("--quick", "Run a tenth of each workload, to see that it works.")]
