"""Explain in sentences why a job is not running."""

import shlex
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from awa_py import durations
from awa_py.model.job import Job, State
from awa_py.store.durable_jobs import JobWait
from awa_py.store.jobs import JobConditions
from awa_py.text import count, ordinal, relative_time, short_duration

START_LEADER = "start `awa worker` or `awa maintenance`."
SILENT_S = 60.0  # two heartbeats at the default interval: worth mentioning, not yet presumed dead


def explain(
    job: Job, conditions: JobConditions, *, wait: JobWait | None = None, has_leader: bool, now: datetime
) -> list[str]:
    """Return what keeps the job from running, the nearest reason first; or that it runs, or how it ended.

    `wait` is what a waiting job waits for.
    """
    return list(_sentences(job, conditions, wait, has_leader=has_leader, now=now))


def wait_sentence(wait: JobWait, now: datetime) -> str:
    """Return e.g. `waits for the signal "approved" since 2026-05-01 12:00:00 UTC (3d ago), until …`."""
    awaited = [f'the signal "{name}"' for name in wait.signals]
    if wait.children:
        ids = ", ".join(map(str, wait.unfinished_ids))
        more = ", …" if wait.unfinished > len(wait.unfinished_ids) else ""
        which = f" ({'job' if wait.unfinished == 1 else 'jobs'} {ids}{more})" if ids else ""
        awaited.append(
            f"{wait.unfinished:,} of {wait.children:,} {'child' if wait.children == 1 else 'children'}{which}"
        )
    words = ["waits"]
    if awaited:
        words.append(f"for {' or '.join(awaited)}")
    if wait.since is not None:
        words.append(f"since {_when(wait.since, now)}")
    text = " ".join(words)
    return text if wait.until is None else f"{text}{',' if len(words) > 1 else ''} until {_when(wait.until, now)}"


def _sentences(
    job: Job, conditions: JobConditions, wait: JobWait | None, *, has_leader: bool, now: datetime
) -> Iterator[str]:
    if job.state.final:
        yield from _ended(job, now)
        return
    if job.state is State.RUNNING:
        yield from _running(job, conditions, now)
    elif job.state is State.WAITING:
        yield from _waiting(job, wait, has_leader=has_leader, now=now)
    else:
        if job.state is not State.AVAILABLE:
            yield from _not_due(job, conditions, has_leader=has_leader, now=now)
        yield from _obstacles(job, conditions, now)
        if job.deadline_at is not None:
            yield f"It fails if it has not completed by its deadline, {_when(job.deadline_at, now)}."
    if job.unique_key is not None:
        yield f'It holds the unique key "{job.unique_key}": while it does, no other job with this key is enqueued.'


def _ended(job: Job, now: datetime) -> Iterator[str]:
    ended = "" if job.finalized_at is None else f" {_when(job.finalized_at, now)}"
    if job.state is State.COMPLETED:
        yield f"It completed{ended}, on its {ordinal(job.attempt)} attempt."
        return
    if job.state is State.CANCELLED:
        yield f"It was cancelled{ended}, after {count(job.attempt, 'attempt')}."
    else:
        yield f"It failed{ended}, after {job.attempt} of {count(job.max_attempts, 'attempt')}."
    yield from _last_error(job)
    yield f"To run it again with all its attempts: `awa job retry {job.id}`."


def _running(job: Job, conditions: JobConditions, now: datetime) -> Iterator[str]:
    owner = f" ({conditions.owner})" if conditions.owner else ""
    started = "" if job.attempted_at is None else f", started {_when(job.attempted_at, now)}"
    yield f"It is running on worker {job.worker_id}{owner}{started}: attempt {job.attempt} of {job.max_attempts}."
    if job.cancel_requested_at is not None:
        yield f"Its cancellation was requested {relative_time(job.cancel_requested_at - now)}."
    if job.deadline_at is not None:
        yield f"This attempt must end by {_when(job.deadline_at, now)}."
    if conditions.owner_silent_s is not None and conditions.owner_silent_s > SILENT_S:
        silent = short_duration(timedelta(seconds=conditions.owner_silent_s))
        yield f"That worker has sent no heartbeat for {silent}. If it is dead, the leader will rescue the job."
    elif conditions.owner is None:
        yield "That worker is no longer in the list of workers. If it is dead, the leader will rescue the job."


def _waiting(job: Job, wait: JobWait | None, *, has_leader: bool, now: datetime) -> Iterator[str]:
    if wait is None:  # it went on between two statements
        yield "It waited for a timer, a signal or its children a moment ago."
        return
    yield f"It {wait_sentence(wait, now)}. It occupies no slot."
    for name in wait.signals:
        yield f"To send the signal: `awa job signal {job.id} {shlex.quote(name)}`."
    if not has_leader and wait.until is not None:
        yield f"There is no leader, so it does not go on when the time has come: {START_LEADER}"
    if wait.children and not wait.unfinished:
        yield "These children have ended: the leader will make it available within seconds."


def _not_due(job: Job, conditions: JobConditions, *, has_leader: bool, now: datetime) -> Iterator[str]:
    if job.state is State.RETRYABLE:
        yield f"Attempt {job.attempt} of {job.max_attempts} failed. The next one is due {_when(job.run_at, now)}."
        yield from _last_error(job)
    elif conditions.future:
        yield f"It is scheduled for {_when(job.run_at, now)}."
    else:
        yield f"It was due {_when(job.run_at, now)}."
    if has_leader:
        if not conditions.future:
            yield "The leader will make it available within seconds."
    else:
        yield f"There is no leader, so due jobs do not become available: {START_LEADER}"


def _obstacles(job: Job, conditions: JobConditions, now: datetime) -> Iterator[str]:
    obstacles = [
        *_paused_or_throttled(job, conditions, now),
        *_unserved(job, conditions),
        *_full(job, conditions),
        *_held_by_key(job, conditions),
    ]
    yield from obstacles
    if conditions.rate_jobs is not None and conditions.rate_period is not None:
        rate = f"{count(conditions.rate_jobs, 'job')} in {durations.text(conditions.rate_period)}"
        yield f'Its queue "{job.queue}" starts at most {rate}.'
    if job.state is State.AVAILABLE:
        yield from _jobs_ahead(job, conditions, unblocked=not obstacles)


def _paused_or_throttled(job: Job, conditions: JobConditions, now: datetime) -> Iterator[str]:
    if conditions.paused:
        until = "" if conditions.paused_until is None else f" until {_stamp(conditions.paused_until)}"
        yield f'Its queue "{job.queue}" is paused{until}. To resume it: `awa queue resume {job.queue}`.'
    if conditions.throttled_until is not None:
        why = f": {conditions.throttle_reason}" if conditions.throttle_reason else ""
        yield f'Its queue "{job.queue}" is throttled until {_when(conditions.throttled_until, now)}{why}.'


def _unserved(job: Job, conditions: JobConditions) -> Iterator[str]:
    queue = f'queue "{job.queue}"'
    if conditions.workers == 0:
        yield "No worker is alive: start one with `awa worker`."
    elif conditions.workers_of_queue == 0:
        yield f"No live worker serves its {queue} ({count(conditions.workers, 'live worker')} checked)."
    elif conditions.workers_of_kind == 0:
        checked = count(conditions.workers_of_queue, "live worker")
        yield f'No live worker of its {queue} has a handler for kind "{job.kind}" ({checked} checked).'


def _full(job: Job, conditions: JobConditions) -> Iterator[str]:
    limit, running = conditions.max_workers, conditions.queue_running
    if limit is not None and running >= limit:
        are = "is" if running == 1 else "are"
        yield f'Its queue "{job.queue}" is at its max_workers: {running} of {count(limit, "job")} {are} running.'


def _held_by_key(job: Job, conditions: JobConditions) -> Iterator[str]:
    key, limit, running = job.concurrency_key, job.concurrency_limit or 1, conditions.key_running
    if key is None:
        return
    if running >= limit:
        holders = ", ".join(map(str, conditions.key_holders))
        more = ", …" if running > len(conditions.key_holders) else ""
        are, noun = ("is", "job") if running == 1 else ("are", "jobs")
        which = f"({noun} {holders}{more})"
        yield f'Its concurrency key "{key}" is at its limit: {running} of {count(limit, "job")} {are} running {which}.'
    elif conditions.earlier_id is not None:
        earlier = f"job {conditions.earlier_id} ({conditions.earlier_state})"
        yield f'Its concurrency key "{key}" is ordered: {earlier} must end first.'


def _jobs_ahead(job: Job, conditions: JobConditions, *, unblocked: bool) -> Iterator[str]:
    if conditions.ahead:
        are = "is" if conditions.ahead == 1 else "are"
        ahead = count(conditions.ahead, "job")
        if job.concurrency_key is None:
            yield f'{ahead} {are} ahead of it in its queue "{job.queue}".'
        else:
            yield f'{ahead} with its concurrency key "{job.concurrency_key}" {are} ahead of it.'
    elif unblocked:
        workers = count(conditions.workers_of_kind, "worker")
        yield f"It is next in line: it is waiting for a free slot on {workers} that can run it."


def _last_error(job: Job) -> Iterator[str]:
    if job.errors:
        yield f"Its last error: {job.errors[-1].get('error', '')}"


def _when(moment: datetime, now: datetime) -> str:
    return f"{_stamp(moment)} ({relative_time(moment - now)})"


def _stamp(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
