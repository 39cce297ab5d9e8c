"""Schedules: code's definitions become rows, and due rows become jobs."""

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta

import asyncpg

from awa_py.db.errors import CONNECTION_LOST
from awa_py.errors import InvalidSchedule
from awa_py.maintenance.task import TaskResult
from awa_py.model.registry import CronDefinition
from awa_py.model.schedule import Schedule
from awa_py.store import schedules as store
from awa_py.store.schedules import DueSchedule
from awa_py.store.session import Session
from awa_py.text import describe

logger = logging.getLogger("awa.cron")

BATCH = 100
NO_SCHEDULES_PAUSE_S = 10.0
MAX_MADE_UP = 100  # for the misfire policy `all`: more than that is a backlog nobody wants
SKIP_GRACE = timedelta(seconds=30)  # for `skip`: a change of leaders is no reason to miss a fire


async def sync(session: Session, definitions: Sequence[CronDefinition]) -> TaskResult:
    """Adds and updates the schedules that this program declares; never deletes, and never resumes a paused one."""
    changed = 0
    for definition in definitions:
        try:
            changed += await store.upsert_schedule(
                session,
                name=definition.name,
                expression=definition.expression,
                timezone=definition.timezone,
                kind=definition.kind,
                args=definition.args,
                options=definition.options,
                misfire=definition.misfire,
            )
        except CONNECTION_LOST:
            raise
        except asyncpg.PostgresError as error:
            logger.error("schedule %s could not be written: %s", definition.name, describe(error))
    return TaskResult(changed)


async def evaluate(session: Session) -> TaskResult:
    """Enqueues what is due, once, whoever else evaluates at the same time."""
    next_s = await store.seconds_to_next_fire(session)
    if next_s is None:  # whoever adds a schedule says so
        return TaskResult(interval_s=NO_SCHEDULES_PAUSE_S)
    if next_s > 0:
        return TaskResult(next_due_s=next_s)
    due = await store.list_due_schedules(session, limit=BATCH)
    enqueued = 0
    for schedule in due:
        try:
            enqueued += await _fire_or_disable(session, schedule)
        except CONNECTION_LOST:
            raise
        except asyncpg.PostgresError as error:  # a lock or a timeout, say: no fault of the schedule's
            logger.warning("schedule %s could not fire, trying again: %s", schedule.name, describe(error))
    return TaskResult(enqueued, has_more=len(due) == BATCH, next_due_s=await store.seconds_to_next_fire(session))


async def _fire_or_disable(session: Session, due: DueSchedule) -> int:
    try:
        return await _fire(session, due)
    except (InvalidSchedule, asyncpg.DataError, asyncpg.IntegrityConstraintViolationError) as error:
        if await store.disable_schedule(session, due, describe(error)):
            logger.error("schedule %s is disabled: %s", due.name, describe(error))
        return 0


async def _fire(session: Session, due: DueSchedule) -> int:
    schedule = Schedule(due.expression, due.timezone)
    if schedule.never_fires:
        raise InvalidSchedule(f"{due.expression!r} never fires")
    fires, handled_until = _fires(schedule, due)
    ids = await store.fire_schedule(
        session, due, fires=fires, handled_until=handled_until, next_at=schedule.next(due.now)
    )
    for job_id in ids:
        logger.debug("schedule %s fired: job %d", due.name, job_id, extra={"job_id": job_id})
    return len(ids)


def _fires(schedule: Schedule, due: DueSchedule) -> tuple[list[datetime], datetime | None]:
    """The fire times that become jobs, and the last one that is dealt with by that."""
    if due.misfire == "all":
        fires = schedule.missed(after=due.since, until=due.now, limit=MAX_MADE_UP)
        return fires, fires[-1] if fires else None
    latest = schedule.latest(after=due.since, until=due.now)
    if latest is None or (due.misfire == "skip" and due.now - latest > SKIP_GRACE):
        return [], latest
    return [latest], latest
