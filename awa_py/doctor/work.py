"""The work: queues have workers, kinds have handlers, schedules fire."""

from datetime import UTC, datetime, timedelta

from awa_py.doctor.cluster import WORKERS
from awa_py.doctor.context import CheckContext
from awa_py.doctor.finding import Findings
from awa_py.errors import InvalidSchedule
from awa_py.model.schedule import Schedule
from awa_py.store import backlog, schedules
from awa_py.store.backlog import WaitingQueue, WorkerHeartbeat
from awa_py.store.schedules import ScheduleRow
from awa_py.text import count, short_duration

QUEUES = 1_000
COUNT_TO = 101
HEAD = 25  # jobs of each queue and priority, for their kinds
LATE = timedelta(seconds=60)
OFTEN = 5  # throttled so many times in a row
LONG_S = 300.0
DEFAULT_QUEUE = "default"


async def check_queues(context: CheckContext, notes: Findings) -> None:
    """Whatever waits has somebody who may take it."""
    queues = await backlog.list_waiting_queues(
        context.session, limit=QUEUES, count_to=COUNT_TO, staleness=context.settings.heartbeat_staleness
    )
    for queue in queues:
        if queue.paused:
            _note_paused(notes, queue)
        elif queue.workers == 0:
            notes.problem(
                f"queue {queue.name}",
                f"{_jobs(queue)}, the first for {short_duration(timedelta(seconds=queue.waited_s))}, "
                "and no live worker serves it.",
                f"Start `awa worker APP -q {queue.name}`.",
            )
        elif queue.throttles >= OFTEN:
            _note_throttled(notes, queue)
        elif queue.max_workers is not None and queue.running >= queue.max_workers and queue.waited_s > LONG_S:
            notes.notice(
                f"queue {queue.name}",
                f"{count(queue.running, 'job')} run, as many as its max_workers allows, and {_jobs(queue)} "
                f"({short_duration(timedelta(seconds=queue.waited_s))} so far).",
                f"Where what it uses can bear more: `awa queue set {queue.name} --max-workers N`.",
            )
    if len(queues) == QUEUES:
        notes.notice(
            None,
            f"There are more than {QUEUES:,} queues with work; the others were not looked at.",
            "`awa queue list` shows them all.",
        )
    notes.ok(f"{count(len(queues), 'queue')} with work, all served" if queues else "nothing waits")


async def check_kinds(context: CheckContext, notes: Findings) -> None:
    """Whatever waits has a handler in a live worker."""
    served = sorted({queue for worker in await _live_workers(context) for queue in worker.queues})[:QUEUES]
    staleness = context.settings.heartbeat_staleness
    for unserved in await backlog.list_unserved_kinds(context.session, served, look_at=HEAD, staleness=staleness):
        notes.problem(
            f"kind {unserved.kind}",
            f'No live worker of queue "{unserved.queue}" has a handler for it, and jobs wait.',
            "Deploy a worker whose app declares it; or enqueue under the right name, and `awa job cancel` these.",
        )
    notes.ok("every kind that waits where workers are has a handler")


async def check_schedules(context: CheckContext, notes: Findings) -> None:
    """Every schedule fires, and what it enqueues is known to somebody."""
    rows = await schedules.list_schedules(context.session)
    now = await context.session.now()
    workers = await _live_workers(context)
    known = {(queue, kind) for worker in workers for queue in worker.queues for kind in worker.kinds}
    for row in rows:
        _examine_schedule(notes, row, now)
        queue = row.options.get("queue") or DEFAULT_QUEUE
        if row.enabled and not row.paused and (queue, row.kind) not in known:
            notes.warning(
                f"schedule {row.name}",
                f'No live worker of queue "{queue}" has a handler for its kind "{row.kind}": its jobs will wait.',
                f"Deploy a worker whose app declares it; or `awa cron delete {row.name}`.",
            )
    notes.ok(f"{count(len(rows), 'schedule')}, in order" if rows else "there are none")


def _examine_schedule(notes: Findings, row: ScheduleRow, now: datetime) -> None:
    about = f"schedule {row.name}"
    mend = (
        f"Correct it where it is declared (@app.cron, or `awa cron set {row.name} …`), or `awa cron delete {row.name}`."
    )
    try:
        never = Schedule(row.expression, row.timezone).never_fires
    except InvalidSchedule as error:
        notes.problem(about, f"It never fires: {error}.", mend)
        return
    if never:
        notes.problem(about, f'It never fires: no date fits "{row.expression}".', mend)
    elif not row.enabled:
        # Its last error may quote arguments: they are not for this page.
        notes.problem(
            about,
            "It is switched off, since its job could not be enqueued.",
            f"`awa cron show {row.name}` says why. {mend}",
        )
    elif row.paused:
        notes.notice(about, "It is paused.", f"`awa cron resume {row.name}`")
    elif row.next_at is not None and now - row.next_at > LATE:
        notes.problem(
            about,
            f"It should have fired {short_duration(now - row.next_at)} ago.",
            "See whether somebody leads, and the leader's log.",
        )


def _note_paused(notes: Findings, queue: WaitingQueue) -> None:
    if queue.paused_until is None:
        notes.problem(f"queue {queue.name}", f"It is paused, and {_jobs(queue)}.", f"`awa queue resume {queue.name}`")
    else:
        until = f"{queue.paused_until.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
        notes.warning(
            f"queue {queue.name}",
            f"It is paused until {until}, and {_jobs(queue)}.",
            f"Wait, or `awa queue resume {queue.name}`.",
        )


def _note_throttled(notes: Findings, queue: WaitingQueue) -> None:
    rests = (
        ""
        if queue.cooldown_s is None
        else f" It rests for another {short_duration(timedelta(seconds=queue.cooldown_s))}."
    )
    notes.notice(
        f"queue {queue.name}",
        f"It was throttled {queue.throttles} times in a row, and {_jobs(queue)}.{rests}",
        f"Stay below what the other side allows, with `awa queue set {queue.name} --rate` or --max-workers; "
        f"`awa queue unthrottle {queue.name}` lets it go on at once.",
    )


def _jobs(queue: WaitingQueue) -> str:
    if queue.jobs >= COUNT_TO:
        return f"more than {COUNT_TO - 1} jobs wait"
    return f"{count(queue.jobs, 'job')} {'waits' if queue.jobs == 1 else 'wait'}"


async def _live_workers(context: CheckContext) -> list[WorkerHeartbeat]:
    staleness_s = context.settings.heartbeat_staleness.total_seconds()
    workers = await backlog.list_heartbeats(context.session, limit=WORKERS)
    return [worker for worker in workers if worker.silent_s <= staleness_s]
