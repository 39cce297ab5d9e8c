"""What may be chosen on the command line."""

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


# So many that each takes a few seconds.
ENQUEUED: Mapping[Mode, int] = {Mode.ONE: 3_000, Mode.TRANSACTION: 10_000, Mode.BULK: 50_000, Mode.PRODUCERS: 10_000}
MOST = 10_000_000


def _number(flag: str, says: str, *, least: int = 1, most: int = MOST) -> Any:
    variable = f"AWA_BENCH_{flag.strip('-').upper()}"
    return typer.Option(flag, metavar="N", min=least, max=most, envvar=variable, help=says)


def _switch(flag: str, says: str) -> Any:
    return typer.Option(flag, envvar=f"AWA_BENCH_{flag.strip('-').upper()}", help=says)


Jobs = Annotated[int, _number("--jobs", "How many jobs.")]
EnqueuedJobs = Annotated[
    int | None,
    _number(
        "--jobs",
        f"How many jobs; unless set, {', '.join(f'{jobs:,} ({mode})' for mode, jobs in ENQUEUED.items())}.",
    ),
]
Concurrency = Annotated[
    int | None, _number("--concurrency", "How many jobs the worker runs at once; its default unless set.")
]
Batch = Annotated[bool, _switch("--batch", "With a handler that takes up to 500 jobs in a call.")]
Discard = Annotated[bool, _switch("--discard", "Keep no history: a completed job is deleted.")]
Pinned = Annotated[bool, _switch("--pinned", "While somebody's transaction holds a snapshot from before.")]
Completed = Annotated[int, _number("--completed", "So many completed jobs are there already.", least=0)]
Scheduled = Annotated[int, _number("--scheduled", "So many jobs of the far future are there already.", least=0)]
ModeOption = Annotated[
    Mode,
    typer.Option(
        "--mode",
        metavar="MODE",
        envvar="AWA_BENCH_MODE",
        help="one (by one), transaction (100 in each of one's own), bulk (10,000 in a call), producers (many at once).",
    ),
]
Producers = Annotated[int, _number("--producers", "How many producers, in one process.", most=10_000)]
WorkerBeside = Annotated[bool, _switch("--worker", "While a worker, in a process of its own, runs the jobs.")]
Rate = Annotated[
    float,
    typer.Option(
        "--rate", metavar="N", min=0.1, max=1_000_000, envvar="AWA_BENCH_RATE", help="Jobs a second, on average."
    ),
]
Seconds = Annotated[
    float,
    typer.Option("--seconds", metavar="N", min=0.1, max=86_400, envvar="AWA_BENCH_SECONDS", help="For how long."),
]
Rounds = Annotated[int, _number("--rounds", "How often, with it and without it.", most=1_000)]
Failing = Annotated[bool, _switch("--failing", "Each job fails at its first attempt: there is something to note.")]
Quick = Annotated[bool, _switch("--quick", "A tenth of each: enough to see that it works.")]
