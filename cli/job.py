"""awa job …"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Annotated, Any

import typer
from rich.text import Text

from awa_py import durations
from awa_py.client import Client
from awa_py.model.job import Job, State
from awa_py.observability.history import Event
from awa_py.store import bulk
from awa_py.store import jobs as store
from awa_py.store.bulk import CANCEL, DELETE
from awa_py.text import count, escape

from .bulk import JobSelection, run_operation, selects_jobs
from .decorators import command
from .environment import Environment
from .output import (
    STATE_STYLES,
    Fields,
    Row,
    ago,
    approximate,
    compact_json,
    print_fields,
    print_json,
    print_table,
    say,
    state_text,
    timestamp,
)
from .parsing import JobId, JsonOption, parse_id, parse_queue

EVENT_STYLES = {**STATE_STYLES, "retried": "yellow", "rescued": "yellow", "error": "yellow"}

app = typer.Typer(help="List, show, explain, cancel, retry, delete and move jobs.", no_args_is_help=True)


@command(app, "awa job list --state failed --queue email", name="list")
async def list_jobs(
    env: Environment,
    state: Annotated[
        list[State] | None,
        typer.Option(
            "--state", "-s", metavar="STATE", help=f"Only jobs in this state: {', '.join(State)}; repeatable."
        ),
    ] = None,
    queue: Annotated[str | None, typer.Option("--queue", "-q", metavar="NAME", help="Only jobs of this queue.")] = None,
    kind: Annotated[str | None, typer.Option("--kind", "-k", metavar="NAME", help="Only jobs of this kind.")] = None,
    tag: Annotated[str | None, typer.Option("--tag", "-t", metavar="TAG", help="Only jobs with this tag.")] = None,
    before: Annotated[
        int | None, typer.Option(metavar="ID", parser=parse_id, help="Only jobs with a lower id, for paging.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, max=100_000, help="Maximum number of jobs.")
    ] = 50,
    as_json: JsonOption = False,
) -> None:
    """List jobs, the newest first."""
    async with env.session() as session:
        jobs = await store.list_jobs(
            session, states=state or None, queue=queue, kind=kind, tag=tag, below=before, limit=limit
        )
        now = await session.now()
    if as_json:
        print_json([as_columns(job) for job in jobs])
        return
    print_table([_row(job, now) for job in jobs], empty="no jobs")


@command(app, "awa job show 42")
async def show(env: Environment, job_id: JobId, as_json: JsonOption = False) -> None:
    """Show one job with its history."""
    async with env.client() as client:
        job = await client.get(job_id)
        history = await client.history(job_id)
        async with client.session() as session:
            now = await session.now()
    if as_json:
        print_json({**as_columns(job), "timeline": [_event_object(*each) for each in _with_intervals(history)]})
    else:
        print_fields(_fields(job, now))
        say("")
        print_table([_event_row(event, after_s, now) for event, after_s in _with_intervals(history)], empty="")


@command(app, "awa job explain 42")
async def explain(env: Environment, job_id: JobId, as_json: JsonOption = False) -> None:
    """Explain why a job is not running."""
    async with env.client() as client:
        reasons = await client.explain(job_id)
    if as_json:
        print_json({"id": job_id, "reasons": reasons})
        return
    for reason in reasons:
        say(reason)


@command(app, "awa job cancel --queue email --older-than 1d")
@selects_jobs
async def cancel(env: Environment, selection: JobSelection) -> None:
    """Cancel jobs. The workers of running jobs are told to stop them."""
    if selection.filters is not None:
        await run_operation(env, CANCEL, selection.filters, selection)
        return
    async with env.client() as client:
        results = await client.cancel_many(selection.ids)
        found = await _get_jobs(client, selection.ids)
    texts = {"cancelled": "cancelled", "requested": "its worker was told to stop it"}
    _print_results(selection.ids, {job_id: texts[result] for job_id, result in results.items()}, found)


@command(app, "awa job retry --queue email --error timeout")
@selects_jobs
async def retry(env: Environment, selection: JobSelection) -> None:
    """Make jobs available now. Ended jobs get all of their attempts again.

    Without --state, the filters select failed and retryable jobs.
    """
    if selection.filters is not None:
        write_events = bool(env.settings.events_retention)
        await run_operation(env, bulk.retry(write_events=write_events), selection.filters, selection)
        return
    async with env.client() as client:
        retried = await client.retry_many(selection.ids)
        found = await _get_jobs(client, selection.ids)
    _print_results(selection.ids, dict.fromkeys(retried, "available"), found)


@command(app, "awa job delete --kind digest --state failed --yes")
@selects_jobs
async def delete(env: Environment, selection: JobSelection) -> None:
    """Delete jobs permanently. Cancel running jobs first."""
    if selection.filters is not None:
        await run_operation(env, DELETE, selection.filters, selection)
        return
    if not selection.yes:
        typer.confirm(f"Permanently delete {count(len(set(selection.ids)), 'job')}?", abort=True)
    async with env.client() as client:
        deleted = await client.delete_many(selection.ids)
        found = await _get_jobs(client, selection.ids)
    _print_results(selection.ids, dict.fromkeys(deleted, "deleted"), found)


@command(app, "awa job move --queue email --kind newsletter --to-queue bulk --to-priority 4")
@selects_jobs
async def move(
    env: Environment,
    selection: JobSelection,
    to_queue: Annotated[str | None, typer.Option(metavar="NAME", parser=parse_queue, help="New queue.")] = None,
    to_priority: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=4, help="New priority, from 1 (first) to 4.")
    ] = None,
) -> None:
    """Move waiting jobs to the end of another queue or priority."""
    if to_queue is None and to_priority is None:
        raise typer.BadParameter("nothing to change: use --to-queue, --to-priority, or both")
    if selection.filters is not None:
        await run_operation(env, bulk.move(queue=to_queue, priority=to_priority), selection.filters, selection)
        return
    async with env.client() as client:
        moved = await client.move_many(selection.ids, queue=to_queue, priority=to_priority)
        found = await _get_jobs(client, selection.ids)
    _print_results(selection.ids, dict.fromkeys(moved, "moved"), found)


def as_columns(job: Job) -> dict[str, Any]:
    """Return a job with the columns of the view `awa.jobs`."""
    return {name: getattr(job, name) for name in Job.__slots__ if name != "is_new"}


def _with_intervals(history: Sequence[Event]) -> list[tuple[Event, float | None]]:
    """Return each event with the seconds since the previous one."""
    intervals_s = [(event.at - before.at).total_seconds() for before, event in pairwise(history)]
    return list(zip(history, [None, *intervals_s], strict=True))


def _event_object(event: Event, after_s: float | None) -> dict[str, Any]:
    return {**{name: getattr(event, name) for name in Event.__slots__}, "after_s": after_s}


def _event_row(event: Event, after_s: float | None, now: datetime) -> Row:
    """Return a row that fits 80 columns."""
    return {
        "when (UTC)": Text(f"{event.at.astimezone(UTC):%m-%d %H:%M:%S.%f}"[:-3]),
        "event": Text(escape(event.event), style="dim" if event.at > now else EVENT_STYLES.get(event.event, "")),
        "after": Text("" if after_s is None else approximate(after_s), justify="right"),
        "attempt": event.attempt,
        "worker": Text("" if event.worker_id is None else str(event.worker_id)[:8]),
        "detail": (event.detail or "").partition("\n")[0],
    }


async def _get_jobs(client: Client, job_ids: Sequence[int]) -> dict[int, Job]:
    async with client.session() as session:
        return await store.get_jobs(session, job_ids)


def _print_results(job_ids: Sequence[int], results: dict[int, str], found: dict[int, Job]) -> None:
    """Print a line for each job. Exit with 1 if one was not changed."""
    for job_id in dict.fromkeys(job_ids):
        if job_id in results:
            say(f"job {job_id}: {results[job_id]}")
        elif job_id in found:
            typer.echo(f"awa: job {job_id} is {found[job_id].state}: nothing was changed", err=True)
        else:
            typer.echo(f"awa: there is no job {job_id}", err=True)
    if not results.keys() >= set(job_ids):
        raise typer.Exit(1)


def _row(job: Job, now: datetime) -> Row:
    return {
        "id": job.id,
        "state": state_text(job.state),
        "kind": job.kind,
        "queue": job.queue,
        "attempt": Text(f"{job.attempt}/{job.max_attempts}"),
        "created": Text(ago(job.created_at, now)),
        "when": Text(_when(job, now)),
        "last error": _last_error(job),
    }


def _when(job: Job, now: datetime) -> str:
    match job.state:
        case State.RUNNING:
            return f"started {ago(job.attempted_at, now)}"
        case State.COMPLETED | State.FAILED | State.CANCELLED:
            return f"ended {ago(job.finalized_at, now)}"
        case _:
            return f"due {ago(job.run_at, now)}"


def _last_error(job: Job) -> str:
    return str(job.errors[-1].get("error", "")).partition("\n")[0] if job.errors else ""


def _fields(job: Job, now: datetime) -> Fields:
    return {
        "id": job.id,
        "kind": job.kind,
        "state": state_text(job.state),
        "queue": job.queue,
        "priority": job.priority,
        "attempt": f"{job.attempt} of {job.max_attempts}",
        "rescues": job.rescues or None,
        "args": compact_json(job.args),
        "created": timestamp(job.created_at, now),
        "due": timestamp(job.run_at, now),
        "started": timestamp(job.attempted_at, now),
        "heartbeat": timestamp(job.heartbeat_at, now),
        "ended": timestamp(job.finalized_at, now),
        "timeout": None if job.timeout is None else durations.text(job.timeout),
        "deadline": timestamp(job.deadline_at, now),
        "cancel requested": timestamp(job.cancel_requested_at, now),
        "worker": None if job.worker_id is None else str(job.worker_id),
        "lease": job.lease,
        "progress": _progress(job.progress),
        "result": compact_json(job.result) if job.state is State.COMPLETED else None,
        "tags": ", ".join(map(str, job.tags)),
        "metadata": compact_json(job.metadata) if job.metadata else None,
        "unique key": job.unique_key,
        "concurrency key": job.concurrency_key,
        "concurrency limit": job.concurrency_limit,
        "ordered": "yes" if job.ordered else None,
        "parent": job.parent_id,
        "errors": [_error_line(error) for error in job.errors],
        "traceback": _traceback_lines(job.errors[-1]) if job.errors else None,
    }


def _progress(progress: Any) -> str | None:
    """Return the progress as a percentage with its message, or as it is if awa did not write it."""
    match progress:
        case None:
            return None
        case {"fraction": int() | float() as fraction}:
            return f"{fraction:.0%} {progress.get('message', '')}"
        case _:
            return compact_json(progress)


def _error_line(error: Mapping[str, Any]) -> str:
    worker = f" on {error['worker']}" if "worker" in error else ""
    return f"{error.get('at', '')} attempt {error.get('attempt')}{worker}: {error.get('error')}"


def _traceback_lines(error: Mapping[str, Any]) -> list[str]:
    """Return the lines of an error's traceback, and of those of its parts."""
    lines = str(error.get("traceback", "")).splitlines()
    found = error.get("parts")
    parts = [part for part in found if isinstance(part, dict)] if isinstance(found, list) else []
    for number, part in enumerate(parts, start=1):
        lines.append(f"part {number} of {len(parts)}:")
        lines += (f"  {line}" for line in str(part.get("traceback", "")).splitlines())
    return lines
