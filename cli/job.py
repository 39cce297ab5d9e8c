"""awa job …"""

from collections.abc import Sequence
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
from awa_py.text import count

from .bulk import Choice, carry_out, choosing
from .environment import Environment, command
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
    stamp,
    state_text,
)
from .parsing import JobId, JsonOption, parse_id, parse_queue

EVENT_STYLES = {**STATE_STYLES, "retried": "yellow", "rescued": "yellow", "error": "yellow"}

app = typer.Typer(help="Look at jobs, cancel, retry, delete, move and explain them.", no_args_is_help=True)


@command(app, "awa job list --state failed --queue email", name="list")
async def list_jobs(
    env: Environment,
    state: Annotated[
        list[State] | None,
        typer.Option("--state", "-s", metavar="STATE", help=f"Only {', '.join(State)}; may be repeated."),
    ] = None,
    queue: Annotated[str | None, typer.Option("--queue", "-q", metavar="NAME", help="Only of this queue.")] = None,
    kind: Annotated[str | None, typer.Option("--kind", "-k", metavar="NAME", help="Only of this kind.")] = None,
    tag: Annotated[str | None, typer.Option("--tag", "-t", metavar="TAG", help="Only with this tag.")] = None,
    before: Annotated[
        int | None, typer.Option(metavar="ID", parser=parse_id, help="Only older ones than this job.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, max=100_000, help="How many at the most.")
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
    """Show all there is to know about a job, and what happened to it."""
    async with env.client() as client:
        job = await client.get(job_id)
        timeline = await client.history(job_id)
        async with client.pool.acquire() as connection:
            now = await client.session(connection).now()
    if as_json:
        print_json({**as_columns(job), "timeline": [_step(*each) for each in _steps(timeline)]})
    else:
        print_fields(_fields(job, now))
        say("")
        print_table([_step_row(event, after_s, now) for event, after_s in _steps(timeline)], empty="")


@command(app, "awa job explain 42")
async def explain(env: Environment, job_id: JobId, as_json: JsonOption = False) -> None:
    """Say why a job is not running."""
    async with env.client() as client:
        sentences = await client.explain(job_id)
    if as_json:
        print_json({"id": job_id, "reasons": sentences})
        return
    for sentence in sentences:
        say(sentence)


@command(app, "awa job cancel --queue email --older-than 1d")
@choosing
async def cancel(env: Environment, choice: Choice) -> None:
    """Cancel jobs; running ones through their workers."""
    if choice.selection is not None:
        await carry_out(env, CANCEL, choice.selection, choice)
        return
    async with env.client() as client:
        answers = await client.cancel_many(choice.ids)
        left = await _look(client, choice.ids)
    words = {"cancelled": "cancelled", "requested": "its worker was told to stop it"}
    _report(choice.ids, {job_id: words[answer] for job_id, answer in answers.items()}, left)


@command(app, "awa job retry --queue email --error timeout")
@choosing
async def retry(env: Environment, choice: Choice) -> None:
    """Make jobs available at once: ended ones again, with all their attempts; waiting ones now.

    Without --state, those that failed: failed and retryable ones.
    """
    if choice.selection is not None:
        write_events = bool(env.settings.events_retention)
        await carry_out(env, bulk.retry(write_events=write_events), choice.selection, choice)
        return
    async with env.client() as client:
        again = await client.retry_many(choice.ids)
        left = await _look(client, choice.ids)
    _report(choice.ids, dict.fromkeys(again, "available"), left)


@command(app, "awa job delete --kind digest --state failed --yes")
@choosing
async def delete(env: Environment, choice: Choice) -> None:
    """Delete jobs for good; running ones have to be cancelled first."""
    if choice.selection is not None:
        await carry_out(env, DELETE, choice.selection, choice)
        return
    if not choice.yes:
        typer.confirm(f"Delete {count(len(set(choice.ids)), 'job')} for good?", abort=True)
    async with env.client() as client:
        gone = await client.delete_many(choice.ids)
        left = await _look(client, choice.ids)
    _report(choice.ids, dict.fromkeys(gone, "deleted"), left)


@command(app, "awa job move --queue email --kind newsletter --to-queue bulk --to-priority 4")
@choosing
async def move(
    env: Environment,
    choice: Choice,
    to_queue: Annotated[
        str | None, typer.Option(metavar="NAME", parser=parse_queue, help="The queue that they go to.")
    ] = None,
    to_priority: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=4, help="The priority that they get.")
    ] = None,
) -> None:
    """Move waiting jobs into another queue, or to another priority: to the end of the line there."""
    if to_queue is None and to_priority is None:
        raise typer.BadParameter("where to? Name --to-queue, --to-priority, or both")
    if choice.selection is not None:
        await carry_out(env, bulk.move(queue=to_queue, priority=to_priority), choice.selection, choice)
        return
    async with env.client() as client:
        moved = await client.move_many(choice.ids, queue=to_queue, priority=to_priority)
        left = await _look(client, choice.ids)
    _report(choice.ids, dict.fromkeys(moved, "moved"), left)


def as_columns(job: Job) -> dict[str, Any]:
    """A job as the view `awa.jobs` has it."""
    return {name: getattr(job, name) for name in Job.__slots__ if name != "is_new"}


def _steps(timeline: Sequence[Event]) -> list[tuple[Event, float | None]]:
    """Each event, and how many seconds after the one before."""
    pauses = [(event.at - before.at).total_seconds() for before, event in pairwise(timeline)]
    return list(zip(timeline, [None, *pauses], strict=True))


def _step(event: Event, after_s: float | None) -> dict[str, Any]:
    return {**{name: getattr(event, name) for name in Event.__slots__}, "after_s": after_s}


def _step_row(event: Event, after_s: float | None, now: datetime) -> Row:
    """Narrow enough for eighty columns."""
    return {
        "when (UTC)": Text(f"{event.at.astimezone(UTC):%m-%d %H:%M:%S.%f}"[:-3]),
        "event": Text(event.event, style="dim" if event.at > now else EVENT_STYLES.get(event.event, "")),
        "after": Text("" if after_s is None else approximate(after_s), justify="right"),
        "attempt": event.attempt,
        "worker": Text("" if event.worker_id is None else str(event.worker_id)[:8]),
        "detail": (event.detail or "").partition("\n")[0],
    }


async def _look(client: Client, job_ids: Sequence[int]) -> dict[int, Job]:
    async with client.pool.acquire() as connection:
        return await store.get_jobs(client.session(connection), job_ids)


def _report(job_ids: Sequence[int], done: dict[int, str], left: dict[int, Job]) -> None:
    """A line a job; exit code 1 where one could not be helped."""
    for job_id in dict.fromkeys(job_ids):
        if job_id in done:
            say(f"job {job_id}: {done[job_id]}")
        elif job_id in left:
            typer.echo(f"awa: job {job_id} is {left[job_id].state}: nothing was done", err=True)
        else:
            typer.echo(f"awa: there is no job {job_id}", err=True)
    if not done.keys() >= set(job_ids):
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
            return f"began {ago(job.attempted_at, now)}"
        case State.COMPLETED | State.FAILED | State.CANCELLED:
            return f"ended {ago(job.finalized_at, now)}"
        case _:
            return f"due {ago(job.run_at, now)}"


def _last_error(job: Job) -> str:
    return str(job.errors[-1].get("error", "")).partition("\n")[0] if job.errors else ""


def _fields(job: Job, now: datetime) -> Fields:
    progress = job.progress or {}
    return {
        "id": job.id,
        "kind": job.kind,
        "state": state_text(job.state),
        "queue": job.queue,
        "priority": job.priority,
        "attempt": f"{job.attempt} of {job.max_attempts}",
        "rescues": job.rescues or None,
        "args": compact_json(job.args),
        "created": stamp(job.created_at, now),
        "due": stamp(job.run_at, now),
        "began": stamp(job.attempted_at, now),
        "heartbeat": stamp(job.heartbeat_at, now),
        "ended": stamp(job.finalized_at, now),
        "timeout": None if job.timeout is None else durations.text(job.timeout),
        "deadline": stamp(job.deadline_at, now),
        "cancel asked": stamp(job.cancel_requested_at, now),
        "worker": None if job.worker_id is None else str(job.worker_id),
        "lease": job.lease,
        "progress": f"{progress['fraction']:.0%} {progress.get('message', '')}" if "fraction" in progress else None,
        "result": compact_json(job.result) if job.state is State.COMPLETED else None,
        "tags": ", ".join(job.tags),
        "metadata": compact_json(job.metadata) if job.metadata else None,
        "unique key": job.unique_key,
        "key": job.concurrency_key,
        "key limit": job.concurrency_limit,
        "key ordered": "yes" if job.ordered else None,
        "parent": job.parent_id,
        "errors": [
            f"{error.get('at', '')} attempt {error.get('attempt')}: {error.get('error')}" for error in job.errors
        ],
    }
