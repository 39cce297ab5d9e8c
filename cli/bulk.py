"""Select jobs by ids or filters, and change many of them: count, confirm, run in batches."""

import asyncio
import inspect
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from typing import Annotated, Any

import typer

from awa_py.errors import AwaError
from awa_py.model.job import State
from awa_py.store import bulk
from awa_py.store.bulk import MAX_COUNTED, Operation, Preview, Selection
from awa_py.store.session import Session
from awa_py.text import count

from .environment import Environment
from .errors import INTERRUPTED
from .output import Row, print_json, print_table, say, state_text
from .parsing import JsonOption, YesOption, parse_duration, parse_id, parse_queue
from .progress import Progress

PANEL = "Filters, instead of ids (all must match)"
PROGRESS_THRESHOLD = 2 * bulk.BATCH_SIZE  # show a progress bar for more jobs
FILTERS = "--queue, --kind, --state, --tag, --error, --older-than, --newer-than or --all"


def _options(
    ids: Annotated[
        list[int] | None, typer.Argument(metavar="ID", parser=parse_id, help="Ids of the jobs.", show_default=False)
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option(
            "--queue", "-q", metavar="NAME", parser=parse_queue, help="Queue of the jobs.", rich_help_panel=PANEL
        ),
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", "-k", metavar="NAME", help="Kind of the jobs.", rich_help_panel=PANEL)
    ] = None,
    state: Annotated[
        list[State] | None,
        typer.Option("--state", "-s", metavar="STATE", help="State of the jobs; repeatable.", rich_help_panel=PANEL),
    ] = None,
    tag: Annotated[
        str | None,
        typer.Option("--tag", "-t", metavar="TAG", help="Tag of the jobs.", rich_help_panel=PANEL),
    ] = None,
    error: Annotated[
        str | None, typer.Option("--error", metavar="TEXT", help="Part of the last error.", rich_help_panel=PANEL)
    ] = None,
    older_than: Annotated[
        timedelta | None,
        typer.Option(
            parser=parse_duration,
            metavar="DURATION",
            help="Ended, or if not ended enqueued, longer ago than this.",
            rich_help_panel=PANEL,
        ),
    ] = None,
    newer_than: Annotated[
        timedelta | None,
        typer.Option(
            parser=parse_duration,
            metavar="DURATION",
            help="Ended, or if not ended enqueued, more recently than this.",
            rich_help_panel=PANEL,
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All jobs that the command applies to.", rich_help_panel=PANEL)
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", "-n", metavar="N", min=1, help="At most this many, the oldest first.", rich_help_panel=PANEL
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the jobs.", rich_help_panel=PANEL)] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Declare the options that select jobs. Only the signature is used."""


OPTIONS = inspect.signature(_options).parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSelection:
    """Jobs by ids or by filters, and how to change them."""

    ids: list[int]
    filters: Selection | None
    limit: int | None
    dry_run: bool
    yes: bool
    as_json: bool

    @classmethod
    def of(
        cls,
        *,
        ids: list[int] | None,
        state: list[State] | None,
        everything: bool,
        limit: int | None,
        dry_run: bool,
        yes: bool,
        as_json: bool,
        **filters: Any,
    ) -> "JobSelection":
        """Check the options: either ids or filters."""
        selection = Selection(states=tuple(state or ()), **filters)
        has_filters = selection != Selection()
        if not (ids or has_filters or everything):
            raise typer.BadParameter(f"no jobs selected: give their ids, or filters: {FILTERS}")
        if ids and (has_filters or everything):
            raise typer.BadParameter("use either ids or filters, not both")
        if has_filters and everything:
            raise typer.BadParameter("--all cannot be combined with filters such as --queue or --state")
        if ids and (limit or dry_run or as_json):
            raise typer.BadParameter("--limit, --dry-run and --json cannot be used with ids")
        return cls(
            ids=ids or [],
            filters=None if ids else selection,
            limit=limit,
            dry_run=dry_run,
            yes=yes,
            as_json=as_json,
        )


def selects_jobs(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that select jobs. Its second argument is the JobSelection."""

    @wraps(function)
    def run(env: Environment, **values: Any) -> Any:
        return function(env, JobSelection.of(**{name: values.pop(name) for name in OPTIONS}), **values)

    first, _, *own = inspect.signature(function, eval_str=True).parameters.values()
    kept = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (*OPTIONS.values(), *own)]
    run.__signature__ = inspect.Signature([first, *kept])  # type: ignore[attr-defined]
    return run


async def run_operation(env: Environment, operation: Operation, filters: Selection, options: JobSelection) -> None:
    """Count the jobs, ask for confirmation, and change them."""
    try:
        operation.states_of(filters)
    except AwaError as error:
        raise typer.BadParameter(str(error)) from None
    async with env.session() as session:
        preview = await bulk.preview(session, operation, filters, limit=options.limit)
    if not options.as_json:
        _show(preview)
    if preview.jobs == 0 or options.dry_run:
        _print_result(operation, options, preview, found=0, changed=0)
        return
    if not options.yes:
        typer.confirm(f"{operation.name.capitalize()} {_how_many(preview)}?", abort=True, err=options.as_json)
    async with env.session() as session:  # a new one: the user may have taken long to answer
        await _run_batches(session, operation, filters, options, preview)


async def _run_batches(
    session: Session, operation: Operation, filters: Selection, options: JobSelection, preview: Preview
) -> None:
    found = changed = 0
    is_large = preview.jobs is None or preview.jobs > PROGRESS_THRESHOLD
    try:
        with (
            _interruption() as interrupted,
            Progress(wanted=is_large).bar(operation.name, preview.jobs or 0, lambda: changed),
        ):
            batches = bulk.run_operation(session, operation, filters, as_of=preview.as_of, limit=options.limit)
            async for batch in batches:
                found += batch.found
                changed += batch.changed
                if interrupted.is_set():
                    break
    except BaseException:
        if changed:
            typer.echo(f"awa: {count(changed, 'job')} {operation.past_tense} before it stopped", err=True)
        raise
    _print_result(operation, options, preview, found=found, changed=changed)
    if interrupted.is_set():
        typer.echo("awa: interrupted: the remaining jobs are unchanged", err=True)
        raise typer.Exit(INTERRUPTED)


@contextmanager
def _interruption() -> Iterator[asyncio.Event]:
    """Handle the first Ctrl-C between two batches, and the second one immediately."""
    loop = asyncio.get_running_loop()
    interrupted = asyncio.Event()

    def interrupt() -> None:
        interrupted.set()
        loop.remove_signal_handler(signal.SIGINT)

    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        yield interrupted
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _show(preview: Preview) -> None:
    if preview.exact and preview.counts:
        rows: list[Row] = [
            {"state": state_text(state), "queue": queue, "jobs": jobs}
            for (state, queue), jobs in preview.counts.items()
        ]
        print_table(rows, empty="")
    if preview.skipped:
        say(f"skipped: {count(preview.skipped, 'running job')}")


def _how_many(preview: Preview) -> str:
    if preview.jobs is not None:
        return count(preview.jobs, "job")
    if preview.counts is None:
        return "jobs that could not be counted in time"
    return f"more than {MAX_COUNTED:,} jobs"


def _print_result(operation: Operation, options: JobSelection, preview: Preview, *, found: int, changed: int) -> None:
    if options.as_json:
        print_json(
            {
                "operation": operation.name,
                "jobs": preview.jobs,
                "by": [
                    {"state": state, "queue": queue, "jobs": jobs}
                    for (state, queue), jobs in (preview.counts or {}).items()
                    if preview.exact
                ],
                "left_alone": preview.skipped,
                "done": changed,
            }
        )
    elif preview.jobs == 0:
        say("no jobs match")
    elif options.dry_run:
        say(f"{_how_many(preview)} would be {operation.past_tense}")
    else:
        others = (
            f"; {count(found - changed, 'job')} skipped: changed meanwhile, or the unique key is taken"
            if found > changed
            else ""
        )
        say(f"{count(changed, 'job')} {operation.past_tense}{others}")
