"""Why a job is not running, in sentences."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from awa_py import durations
from awa_py.model.job import Job, State
from awa_py.store.jobs import JobConditions
from awa_py.text import count, ordinal, relative_time, short_duration

SILENT_S = 60.0  # two heartbeats at the default interval: worth a word, not yet presumed dead


def explain(job: Job, circumstances: JobConditions, *, led: bool, now: datetime) -> list[str]:
    """What keeps the job from running, the nearest reason first; or that it runs, or how it ended."""
    return list(_sentences(job, circumstances, led=led, now=now))


def _sentences(job: Job, circumstances: JobConditions, *, led: bool, now: datetime) -> Iterator[str]:
    if job.state.final:
        yield from _ended(job, now)
        return
    if job.state is State.RUNNING:
        yield from _running(job, circumstances, now)
    elif job.state is State.WAITING:
        yield "It waits for a timer, a signal or its children, and holds no slot meanwhile."
    else:
        if job.state is not State.AVAILABLE:
            yield from _not_due(job, circumstances, led=led, now=now)
        yield from _obstacles(job, circumstances, now)
        if job.deadline_at is not None:
            yield f"It has a deadline: where it has not completed by {_when(job.deadline_at, now)}, it fails."
    if job.unique_key is not None:
        yield f'It holds the unique key "{job.unique_key}": an equal job is not added meanwhile.'


def _ended(job: Job, now: datetime) -> Iterator[str]:
    ended = "" if job.finalized_at is None else f" {_when(job.finalized_at, now)}"
    if job.state is State.COMPLETED:
        yield f"It completed{ended}, in its {ordinal(job.attempt)} attempt."
        return
    if job.state is State.CANCELLED:
        yield f"It was cancelled{ended}, after {count(job.attempt, 'attempt')}."
    else:
        yield f"It failed for good{ended}, after {job.attempt} of {count(job.max_attempts, 'attempt')}."
    yield from _last_error(job)
    yield f"`awa job retry {job.id}` runs it again, with all its attempts."


def _running(job: Job, circumstances: JobConditions, now: datetime) -> Iterator[str]:
    owner = f" ({circumstances.owner})" if circumstances.owner else ""
    since = "" if job.attempted_at is None else f" since {_when(job.attempted_at, now)}"
    yield f"It is running on worker {job.worker_id}{owner}{since}: {_attempt(job)}."
    if job.cancel_requested_at is not None:
        yield f"Its worker was asked to cancel it {relative_time(job.cancel_requested_at - now)}."
    if job.deadline_at is not None:
        yield f"This attempt has to end by {_when(job.deadline_at, now)}."
    if circumstances.owner_silent_s is not None and circumstances.owner_silent_s > SILENT_S:
        silent = short_duration(timedelta(seconds=circumstances.owner_silent_s))
        yield f"That worker has been silent for {silent}: if it is dead, the leader gives the job to another one."
    elif circumstances.owner is None:
        yield "That worker is not in the registry any more: if it is dead, the leader gives the job to another one."


def _not_due(job: Job, circumstances: JobConditions, *, led: bool, now: datetime) -> Iterator[str]:
    if job.state is State.RETRYABLE:
        yield f"Attempt {job.attempt} of {job.max_attempts} failed, and the next one is due {_when(job.run_at, now)}."
        yield from _last_error(job)
    elif circumstances.future:
        yield f"It is scheduled for {_when(job.run_at, now)}."
    else:
        yield f"It was due {_when(job.run_at, now)}."
    if led:
        if not circumstances.future:
            yield "The leader makes it available within seconds."
    else:
        yield "Nobody leads, so that no job becomes available when it is due: start `awa worker` or `awa maintenance`."


def _obstacles(job: Job, circumstances: JobConditions, now: datetime) -> Iterator[str]:
    obstacles = [
        *_closed(job, circumstances, now),
        *_unserved(job, circumstances),
        *_full(job, circumstances),
        *_held_by_key(job, circumstances),
    ]
    yield from obstacles
    if circumstances.rate_jobs is not None and circumstances.rate_period is not None:
        rate = f"{count(circumstances.rate_jobs, 'job')} in {durations.text(circumstances.rate_period)}"
        yield f'Its queue "{job.queue}" begins at most {rate}.'
    if job.state is State.AVAILABLE:
        yield from _place_in_line(job, circumstances, free=not obstacles)


def _closed(job: Job, circumstances: JobConditions, now: datetime) -> Iterator[str]:
    """The queue is."""
    if circumstances.paused:
        until = "" if circumstances.paused_until is None else f" until {_stamp(circumstances.paused_until)}"
        yield f'Its queue "{job.queue}" is paused{until}: `awa queue resume {job.queue}` lets it go on.'
    if circumstances.throttled_until is not None:
        why = f": {circumstances.throttle_reason}" if circumstances.throttle_reason else ""
        yield f'Its queue "{job.queue}" is throttled until {_when(circumstances.throttled_until, now)}{why}.'


def _unserved(job: Job, circumstances: JobConditions) -> Iterator[str]:
    queue = f'queue "{job.queue}"'
    if circumstances.workers == 0:
        yield "No worker is alive: start one with `awa worker`."
    elif circumstances.workers_of_queue == 0:
        yield f"No live worker serves its {queue}, out of {circumstances.workers}."
    elif circumstances.workers_of_kind == 0:
        serving = circumstances.workers_of_queue
        yield f'No live worker of its {queue} knows the kind "{job.kind}", out of {serving}.'


def _full(job: Job, circumstances: JobConditions) -> Iterator[str]:
    most, running = circumstances.max_workers, circumstances.queue_running
    if most is not None and running >= most:
        are = "is" if running == 1 else "are"
        yield f'Its queue "{job.queue}" is full: {running} of {count(most, "job")} {are} running.'


def _held_by_key(job: Job, circumstances: JobConditions) -> Iterator[str]:
    key, limit, running = job.concurrency_key, job.concurrency_limit or 1, circumstances.key_running
    if key is None:
        return
    if running >= limit:
        holders = ", ".join(map(str, circumstances.key_holders))
        more = ", …" if running > len(circumstances.key_holders) else ""
        are, noun = ("is", "job") if running == 1 else ("are", "jobs")
        which = f"({noun} {holders}{more})"
        yield f'Its key "{key}" is at its limit: {running} of {count(limit, "job")} {are} running {which}.'
    elif circumstances.earlier_id is not None:
        earlier = f"job {circumstances.earlier_id}, which is {circumstances.earlier_state}"
        yield f'Its key "{key}" is ordered: {earlier}, has to end first.'


def _place_in_line(job: Job, circumstances: JobConditions, *, free: bool) -> Iterator[str]:
    if circumstances.ahead:
        are = "is" if circumstances.ahead == 1 else "are"
        ahead = count(circumstances.ahead, "job")
        if job.concurrency_key is None:
            yield f'{ahead} {are} ahead of it in its queue "{job.queue}".'
        else:
            yield f'{ahead} of its key "{job.concurrency_key}" {are} ahead of it.'
    elif free:
        workers = count(circumstances.workers_of_kind, "worker")
        yield f"It is the next in line: it waits for a free slot of {workers} that could run it."


def _last_error(job: Job) -> Iterator[str]:
    if job.errors:
        yield f"Its last error: {job.errors[-1].get('error', '')}"


def _attempt(job: Job) -> str:
    return f"its {ordinal(job.attempt)} attempt of {job.max_attempts}"


def _when(moment: datetime, now: datetime) -> str:
    return f"{_stamp(moment)} ({relative_time(moment - now)})"


def _stamp(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
