"""awa job …"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.text import Text

from awa_py.client import Client
from awa_py.model.job import NO_TIMER, Job, State
from awa_py.store import bulk
from awa_py.store import jobs as store
from awa_py.store.bulk import CANCEL, DELETE
from awa_py.text import count, escape

from .bulk import JobSelection, run_operation, selects_jobs
from .checkpoints import durable_object, print_durable_state, read_durable_state
from .decorators import command
from .environment import Environment
from .job_details import as_columns, event_object, event_row, job_fields, with_intervals
from .job_tree import rewind, tree
from .output import (
    Row,
    ago,
    print_fields,
    print_json,
    print_table,
    say,
    state_text,
)
from .parsing import JobId, JsonOption, parse_id, parse_json, parse_queue

app = typer.Typer(
    help="List, show, explain, signal, cancel, retry, rewind, delete and move jobs.", no_args_is_help=True
)


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
    """Show one job with its history; of a durable one its steps, what it waits for, and its children."""
    async with env.client() as client:
        job = await client.get(job_id)
        history = await client.history(job_id)
        async with client.session() as session:
            now = await session.now()
            durable = await read_durable_state(session, job_id)
    if as_json:
        events = [event_object(*each) for each in with_intervals(history)]
        print_json({**as_columns(job), "timeline": events, **durable_object(durable)})
    else:
        print_fields(job_fields(job, now))
        say("")
        print_table([event_row(event, after_s, now) for event, after_s in with_intervals(history)], empty="")
        print_durable_state(job_id, durable, now)


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


command(app, "awa job tree 42")(tree)


@command(app, """awa job signal 42 approved '{"by": "ann"}'""")
async def signal(
    env: Environment,
    job_id: JobId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the signal.")],
    data: Annotated[
        Any, typer.Argument(metavar="JSON", parser=parse_json, help="Data of the signal; - reads standard input.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Send no second signal with this name and key.")
    ] = None,
) -> None:
    """Send a signal to a durable job."""
    async with env.client() as client:
        is_new = await client.signal(job_id, name, data, key=key)
    say(f"job {job_id}: {'signalled' if is_new else 'a signal with this name and key was sent before'}")


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
        waits = {job.id: await _why_it_waits(client, job) for job in found.values() if job.state is State.WAITING}
    _print_results(selection.ids, dict.fromkeys(retried, "available"), found, waits)


command(app, "awa job rewind 42 --to charge")(rewind)


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
    """Move jobs that do not run to the end of another queue or priority."""
    if to_queue is None and to_priority is None:
        raise typer.BadParameter("nothing to change: use --to-queue, --to-priority, or both")
    if selection.filters is not None:
        await run_operation(env, bulk.move(queue=to_queue, priority=to_priority), selection.filters, selection)
        return
    async with env.client() as client:
        moved = await client.move_many(selection.ids, queue=to_queue, priority=to_priority)
        found = await _get_jobs(client, selection.ids)
    _print_results(selection.ids, dict.fromkeys(moved, "moved"), found)


async def _get_jobs(client: Client, job_ids: Sequence[int]) -> dict[int, Job]:
    async with client.session() as session:
        return await store.get_jobs(session, job_ids)


async def _why_it_waits(client: Client, job: Job) -> str:
    """Return what a waiting job waits for, and how to make it go on."""
    reasons = await client.explain(job.id)
    return f"{' '.join(reasons)} To run it again from one of its steps: `awa job rewind {job.id} --to STEP`."


def _print_results(
    job_ids: Sequence[int], results: dict[int, str], found: dict[int, Job], reasons: Mapping[int, str] | None = None
) -> None:
    """Print a line for each job, with the reason if it was not changed. Exit with 1 if one was not changed."""
    for job_id in dict.fromkeys(job_ids):
        if job_id in results:
            say(f"job {job_id}: {results[job_id]}")
        elif job_id in found:
            why = f". {reasons[job_id]}" if reasons and job_id in reasons else ""
            typer.echo(escape(f"awa: job {job_id} is {found[job_id].state}: nothing was changed{why}"), err=True)
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
            return "" if job.run_at == NO_TIMER else f"due {ago(job.run_at, now)}"


def _last_error(job: Job) -> str:
    return str(job.errors[-1].get("error", "")).partition("\n")[0] if job.errors else ""
