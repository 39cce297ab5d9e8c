"""Jobs by their ids or by what they have in common, and what is done to many of them: counted, asked, carried out."""

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

PANEL = "Instead of ids: jobs that have all of this in common"
LARGE = 2 * bulk.BATCH_SIZE  # from here on it is worth a progress bar
HOW = "--queue, --kind, --state, --tag, --error, --older-than, --newer-than, or --all"


def _options(
    ids: Annotated[
        list[int] | None, typer.Argument(metavar="ID", parser=parse_id, help="The jobs' ids.", show_default=False)
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option("--queue", "-q", metavar="NAME", parser=parse_queue, help="Their queue.", rich_help_panel=PANEL),
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", "-k", metavar="NAME", help="Their kind.", rich_help_panel=PANEL)
    ] = None,
    state: Annotated[
        list[State] | None,
        typer.Option("--state", "-s", metavar="STATE", help="Their state; may be repeated.", rich_help_panel=PANEL),
    ] = None,
    tag: Annotated[str | None, typer.Option("--tag", "-t", metavar="TAG", help="A tag.", rich_help_panel=PANEL)] = None,
    error: Annotated[
        str | None, typer.Option("--error", metavar="TEXT", help="A part of their last error.", rich_help_panel=PANEL)
    ] = None,
    older_than: Annotated[
        timedelta | None,
        typer.Option(
            parser=parse_duration,
            metavar="DURATION",
            help="Ended, or else enqueued, longer ago than this.",
            rich_help_panel=PANEL,
        ),
    ] = None,
    newer_than: Annotated[
        timedelta | None,
        typer.Option(parser=parse_duration, metavar="DURATION", help="Not as long ago as this.", rich_help_panel=PANEL),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All that it can be done to.", rich_help_panel=PANEL)
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", "-n", metavar="N", min=1, help="So many at the most, the oldest.", rich_help_panel=PANEL
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count them.", rich_help_panel=PANEL)] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Only its signature is used: how commands that change many jobs are told which."""


OPTIONS = inspect.signature(_options).parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Jobs by their ids, or by what they have in common."""

    ids: list[int]
    selection: Selection | None
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
        **common: Any,
    ) -> "Choice":
        """What the options say, where it is one of both."""
        selection = Selection(states=tuple(state or ()), **common)
        is_narrow = selection != Selection()
        if not (ids or is_narrow or everything):
            raise typer.BadParameter(f"which jobs? Name their ids, or what they have in common: {HOW}")
        if ids and (is_narrow or everything):
            raise typer.BadParameter("name either ids, or what the jobs have in common, not both")
        if is_narrow and everything:
            raise typer.BadParameter("--all goes without --queue, --state and the like: those say which")
        if ids and (limit or dry_run or as_json):
            raise typer.BadParameter("--limit, --dry-run and --json do not go with ids")
        return cls(
            ids=ids or [],
            selection=None if ids else selection,
            limit=limit,
            dry_run=dry_run,
            yes=yes,
            as_json=as_json,
        )


def choosing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command the options that say which jobs; it gets the Choice that they make as its second argument."""

    @wraps(function)
    def run(env: Environment, **values: Any) -> Any:
        return function(env, Choice.of(**{name: values.pop(name) for name in OPTIONS}), **values)

    first, _, *own = inspect.signature(function, eval_str=True).parameters.values()
    kept = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (*OPTIONS.values(), *own)]
    run.__signature__ = inspect.Signature([first, *kept])  # type: ignore[attr-defined]
    return run


async def carry_out(env: Environment, operation: Operation, selection: Selection, choice: Choice) -> None:
    """Counts the jobs, asks, and does it."""
    try:
        operation.states_of(selection)
    except AwaError as error:
        raise typer.BadParameter(str(error)) from None
    async with env.session() as session:
        preview = await bulk.preview(session, operation, selection, limit=choice.limit)
    if not choice.as_json:
        _show(preview)
    if preview.jobs == 0 or choice.dry_run:
        _sum_up(operation, choice, preview, found=0, changed=0)
        return
    if not choice.yes:
        typer.confirm(f"{operation.name.capitalize()} {_how_many(preview)}?", abort=True, err=choice.as_json)
    async with env.session() as session:  # not the one of before: people take their time
        await _work(session, operation, selection, choice, preview)


async def _work(session: Session, operation: Operation, selection: Selection, choice: Choice, preview: Preview) -> None:
    found = changed = 0
    is_large = preview.jobs is None or preview.jobs > LARGE
    try:
        with (
            _interruption() as interrupted,
            Progress(wanted=is_large).bar(operation.name, preview.jobs or 0, lambda: changed),
        ):
            batches = bulk.run_operation(session, operation, selection, as_of=preview.as_of, limit=choice.limit)
            async for batch in batches:
                found += batch.found
                changed += batch.changed
                if interrupted.is_set():
                    break
    except BaseException:
        if changed:
            typer.echo(f"awa: {count(changed, 'job')} {operation.past_tense} before this", err=True)
        raise
    _sum_up(operation, choice, preview, found=found, changed=changed)
    if interrupted.is_set():
        typer.echo("awa: interrupted: the others are as they were", err=True)
        raise typer.Exit(INTERRUPTED)


@contextmanager
def _interruption() -> Iterator[asyncio.Event]:
    """The first Ctrl-C is heard between two batches, the second one at once."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()

    def tell() -> None:
        told.set()
        loop.remove_signal_handler(signal.SIGINT)

    loop.add_signal_handler(signal.SIGINT, tell)
    try:
        yield told
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
        are = "is" if preview.skipped == 1 else "are"
        say(f"{count(preview.skipped, 'running job')} {are} left alone")


def _how_many(preview: Preview) -> str:
    if preview.jobs is not None:
        return count(preview.jobs, "job")
    if preview.counts is None:
        return "jobs that could not be counted in time"
    return f"more than {MAX_COUNTED:,} jobs"


def _sum_up(operation: Operation, choice: Choice, preview: Preview, *, found: int, changed: int) -> None:
    if choice.as_json:
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
        say("no such jobs")
    elif choice.dry_run:
        say(f"{_how_many(preview)}: nothing was done")
    else:
        others = f"; {count(found - changed, 'other')} changed meanwhile" if found > changed else ""
        say(f"{count(changed, 'job')} {operation.past_tense}{others}")
