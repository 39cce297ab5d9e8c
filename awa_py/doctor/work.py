"""Checks of the work: queues have workers, kinds have handlers, schedules fire."""

from datetime import UTC, datetime, timedelta

from awa_py.doctor.cluster import MAX_WORKERS_READ
from awa_py.doctor.context import CheckContext
from awa_py.doctor.finding import Findings
from awa_py.errors import InvalidSchedule
from awa_py.model.schedule import Schedule
from awa_py.store import backlog, invalid_jobs, schedules
from awa_py.store.backlog import WaitingQueue
from awa_py.store.schedules import ScheduleRow
from awa_py.store.workers import WorkerHeartbeat, list_heartbeats
from awa_py.text import count, short_duration

MAX_QUEUES = 1_000
COUNT_LIMIT = 101
HEAD_JOBS = 25  # jobs of each queue and priority whose kinds are checked
LATE = timedelta(seconds=60)
THROTTLES = 5  # in a row
LONG_WAIT_S = 300.0
ENDED_JOBS_READ = 1_000
DEFAULT_QUEUE = "default"


async def check_queues(context: CheckContext, findings: Findings) -> None:
    """Check that each queue with available jobs is served."""
    queues = await backlog.list_waiting_queues(
        context.session, limit=MAX_QUEUES, count_to=COUNT_LIMIT, staleness=context.settings.heartbeat_staleness
    )
    for queue in queues:
        if queue.paused:
            _report_paused(findings, queue)
        elif queue.workers == 0:
            findings.problem(
                f"queue {queue.name}",
                f"{_jobs(queue)}, the first for {short_duration(timedelta(seconds=queue.waited_s))}, "
                "and no live worker serves it.",
                f"Start `awa worker APP -q {queue.name}`.",
            )
        elif queue.throttles >= THROTTLES:
            _report_throttled(findings, queue)
        elif queue.max_workers is not None and queue.running >= queue.max_workers and queue.waited_s > LONG_WAIT_S:
            findings.notice(
                f"queue {queue.name}",
                f"It is at its max_workers ({count(queue.running, 'job')} running), and {_jobs(queue)}, "
                f"the first for {short_duration(timedelta(seconds=queue.waited_s))}.",
                f"If its resources allow more: `awa queue set {queue.name} --max-workers N`.",
            )
    if len(queues) == MAX_QUEUES:
        findings.notice(
            None,
            f"There are more than {MAX_QUEUES:,} queues with available jobs; the others were not checked.",
            "`awa queue list` shows them all.",
        )
    findings.ok(f"{count(len(queues), 'queue')} with available jobs, all served" if queues else "no job is waiting")


async def check_kinds(context: CheckContext, findings: Findings) -> None:
    """Check that each waiting kind has a handler in a live worker."""
    served = sorted({queue for worker in await _live_workers(context) for queue in worker.queues})[:MAX_QUEUES]
    staleness = context.settings.heartbeat_staleness
    for unserved in await backlog.list_unserved_kinds(context.session, served, look_at=HEAD_JOBS, staleness=staleness):
        findings.problem(
            f"kind {unserved.kind}",
            f'No live worker of queue "{unserved.queue}" has a handler for it, and jobs are waiting.',
            "Deploy a worker whose app has this kind; or enqueue under the right name, and `awa job cancel` these.",
        )
    findings.ok("every waiting kind has a handler")


async def check_invalid(context: CheckContext, findings: Findings) -> None:
    """Check that no job failed recently because of the values in its row."""
    invalid = await invalid_jobs.count_invalid_jobs(context.session, limit=ENDED_JOBS_READ)
    if invalid:
        findings.warning(
            None,
            f"{invalid} of the last failed jobs had values in their rows that awa cannot work with.",
            "`awa job list --state failed` shows them, and `awa job show ID` the rules that they break. Find out what "
            "wrote them; check `objects` reports constraints that are missing.",
        )
    findings.ok("no job failed because of its row")


async def check_schedules(context: CheckContext, findings: Findings) -> None:
    """Check that each schedule fires and that its kind has a handler."""
    rows = await schedules.list_schedules(context.session)
    now = await context.session.now()
    workers = await _live_workers(context)
    known = {(queue, kind) for worker in workers for queue in worker.queues for kind in worker.kinds}
    for row in rows:
        _check_schedule(findings, row, now)
        queue = row.options.get("queue") or DEFAULT_QUEUE
        if row.enabled and not row.paused and (queue, row.kind) not in known:
            findings.warning(
                f"schedule {row.name}",
                f'No live worker of queue "{queue}" has a handler for its kind "{row.kind}": its jobs will wait.',
                f"Deploy a worker whose app has this kind; or `awa cron delete {row.name}`.",
            )
    findings.ok(f"{count(len(rows), 'schedule')}, all valid" if rows else "no schedules")


def _check_schedule(findings: Findings, row: ScheduleRow, now: datetime) -> None:
    about = f"schedule {row.name}"
    fix = (
        f"Correct it where it is declared (@app.cron or `awa cron set {row.name} …`), or `awa cron delete {row.name}`."
    )
    try:
        never = Schedule(row.expression, row.timezone).never_fires
    except InvalidSchedule as error:
        findings.problem(about, f"It never fires: {error}.", fix)
        return
    if never:
        findings.problem(about, f'It never fires: no date matches "{row.expression}".', fix)
    elif not row.enabled:
        # Its last error may quote arguments, which must not appear here.
        findings.problem(
            about,
            "It was switched off because its job could not be enqueued.",
            f"`awa cron show {row.name}` shows the error. {fix}",
        )
    elif row.paused:
        findings.notice(about, "It is paused.", f"`awa cron resume {row.name}`")
    elif row.next_at is not None and now - row.next_at > LATE:
        findings.problem(
            about,
            f"It should have fired {short_duration(now - row.next_at)} ago.",
            "Check that there is a leader (`awa leader`), and read its log.",
        )


def _report_paused(findings: Findings, queue: WaitingQueue) -> None:
    if queue.paused_until is None:
        findings.problem(
            f"queue {queue.name}", f"It is paused, and {_jobs(queue)}.", f"`awa queue resume {queue.name}`"
        )
    else:
        until = f"{queue.paused_until.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
        findings.warning(
            f"queue {queue.name}",
            f"It is paused until {until}, and {_jobs(queue)}.",
            f"Wait, or `awa queue resume {queue.name}`.",
        )


def _report_throttled(findings: Findings, queue: WaitingQueue) -> None:
    remaining = (
        ""
        if queue.cooldown_s is None
        else f" The throttle lasts for another {short_duration(timedelta(seconds=queue.cooldown_s))}."
    )
    findings.notice(
        f"queue {queue.name}",
        f"It was throttled {queue.throttles} times in a row, and {_jobs(queue)}.{remaining}",
        f"Stay below the limit of the remote service with `awa queue set {queue.name} --rate` or --max-workers; "
        f"`awa queue unthrottle {queue.name}` ends the throttle now.",
    )


def _jobs(queue: WaitingQueue) -> str:
    if queue.jobs >= COUNT_LIMIT:
        return f"more than {COUNT_LIMIT - 1} jobs are waiting"
    return f"{count(queue.jobs, 'job')} {'is' if queue.jobs == 1 else 'are'} waiting"


async def _live_workers(context: CheckContext) -> list[WorkerHeartbeat]:
    staleness_s = context.settings.heartbeat_staleness.total_seconds()
    workers = await list_heartbeats(context.session, limit=MAX_WORKERS_READ)
    return [worker for worker in workers if worker.silent_s <= staleness_s]
