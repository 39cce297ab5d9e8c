"""Write the app's schedules into the database, and enqueue the jobs of schedules that are due."""

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta

import asyncpg

from awa_py.db.errors import CONNECTION_LOST
from awa_py.declaring import declare_schedules
from awa_py.errors import InvalidSchedule
from awa_py.maintenance.reports import CronReport, CronSyncReport, Fire
from awa_py.maintenance.task import TaskResult
from awa_py.model.registry import CronDefinition
from awa_py.model.schedule import Schedule
from awa_py.store import schedules as store
from awa_py.store.schedules import DueSchedule
from awa_py.store.session import Session
from awa_py.text import describe

logger = logging.getLogger("awa.cron")

SCHEDULES_PER_BATCH = 100
NO_SCHEDULES_INTERVAL_S = 10.0
MAX_MISFIRES = 100  # for the misfire policy `all`: a longer backlog is rarely wanted
SKIP_GRACE = timedelta(seconds=30)  # for the misfire policy `skip`: a change of leaders must not skip a fire time


async def sync(session: Session, definitions: Sequence[CronDefinition], *, level: int = logging.WARNING) -> TaskResult:
    """Write the app's schedules. `level`: at which to log those that are defined differently."""
    changed = await declare_schedules(session, definitions, level=level)
    return TaskResult(CronSyncReport(changed_schedules=tuple(changed)))


async def evaluate(session: Session) -> TaskResult:
    """Fire the due schedules. Each fires once, even if two leaders evaluate at the same time."""
    next_due_s = await store.seconds_to_next_fire(session)
    if next_due_s is None:  # adding a schedule notifies the leader
        return TaskResult(CronReport(), interval_s=NO_SCHEDULES_INTERVAL_S)
    if next_due_s > 0:
        return TaskResult(CronReport(), next_due_s=next_due_s)
    due = await store.list_due_schedules(session, limit=SCHEDULES_PER_BATCH)
    report = CronReport()
    for schedule in due:
        try:
            report += await _fire_or_disable(session, schedule)
        except CONNECTION_LOST:
            raise
        except asyncpg.PostgresError as error:  # e.g. a lock or a timeout, which is not the schedule's fault
            logger.warning("schedule %s could not fire, trying again: %s", schedule.name, describe(error))
    has_more = len(due) == SCHEDULES_PER_BATCH
    return TaskResult(report, has_more=has_more, next_due_s=await store.seconds_to_next_fire(session))


async def _fire_or_disable(session: Session, due: DueSchedule) -> CronReport:
    try:
        return CronReport(fires=await _fire(session, due))
    except (InvalidSchedule, asyncpg.DataError, asyncpg.IntegrityConstraintViolationError) as error:
        if await store.disable_schedule(session, due, describe(error)):
            logger.error("schedule %s is disabled: %s", due.name, describe(error))
            return CronReport(disabled_schedules=(due.name,))
        return CronReport()


async def _fire(session: Session, due: DueSchedule) -> tuple[Fire, ...]:
    schedule = Schedule(due.expression, due.timezone)
    if schedule.never_fires:
        raise InvalidSchedule(f"{due.expression!r} never fires")
    fire_times, handled_until = _fire_times(schedule, due)
    ids = await store.fire_schedule(
        session, due, fires=fire_times, handled_until=handled_until, next_at=schedule.next(due.now)
    )
    # There are no ids if another leader has fired the schedule.
    fires = tuple(
        Fire(schedule=due.name, job_id=job_id, fire_time=fire_time)
        for job_id, fire_time in zip(ids, fire_times, strict=False)
    )
    for fire in fires:
        logger.info(
            "schedule %s fired for %s: job %d",
            fire.schedule,
            fire.fire_time.isoformat(),
            fire.job_id,
            extra={"job_id": fire.job_id},
        )
    return fires


def _fire_times(schedule: Schedule, due: DueSchedule) -> tuple[list[datetime], datetime | None]:
    """Return the fire times to enqueue jobs for, and the last fire time that is handled by that (or skipped)."""
    if due.misfire == "all":
        fire_times = schedule.missed(after=due.since, until=due.now, limit=MAX_MISFIRES)
        return fire_times, fire_times[-1] if fire_times else None
    latest = schedule.latest(after=due.since, until=due.now)
    if latest is None or (due.misfire == "skip" and due.now - latest > SKIP_GRACE):
        return [], latest
    return [latest], latest
