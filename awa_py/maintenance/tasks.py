"""The table of maintenance tasks."""

import logging
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from logging import INFO

from awa_py.db.listener import Topic
from awa_py.invalid_jobs import InvalidJobs
from awa_py.maintenance.aging import Aging
from awa_py.maintenance.cleanup import Cleanup
from awa_py.maintenance.cron import evaluate, sync
from awa_py.maintenance.invalid import Invalid
from awa_py.maintenance.parents import Parents
from awa_py.maintenance.promote import Promotion
from awa_py.maintenance.rebalance import Rebalance
from awa_py.maintenance.rescue import Watch, rescue_gone, rescue_overdue, rescue_stale
from awa_py.maintenance.rollup import RollUp
from awa_py.maintenance.task import Task, TaskResult
from awa_py.maintenance.unserved import Unserved
from awa_py.model.registry import CronDefinition
from awa_py.observability.metrics import Metrics
from awa_py.settings import Settings
from awa_py.store.session import Session


def all_tasks(
    settings: Settings,
    schedules: Sequence[CronDefinition],
    metrics: Metrics,
    *,
    watch: Watch | None = None,
    invalid_jobs: InvalidJobs | None = None,
) -> list[Task]:
    """Return the leader's tasks, in the order of their first run. Without a watch, rescues wait for nothing."""
    staleness = settings.heartbeat_staleness
    invalid = Invalid(invalid_jobs or InvalidJobs(metrics, silence=staleness))
    rescue_interval = settings.heartbeat_rescue_interval
    stale = partial(rescue_stale, staleness=staleness, interval=rescue_interval, metrics=metrics, watch=watch)
    gone = partial(rescue_gone, gone_after=settings.gone_after, metrics=metrics)
    overdue = partial(rescue_overdue, staleness=staleness, metrics=metrics, watch=watch)
    cron_sync = partial(sync, definitions=schedules, level=logging.DEBUG)  # the election has logged them
    cleanup = Cleanup(
        completed_retention=settings.completed_retention,
        failed_retention=settings.failed_retention,
        events_retention=settings.events_retention,
        rollup_retention=settings.rollup_retention,
        staleness=staleness,
    )
    aging = Aging(age=settings.aging_interval, check_interval=settings.aging_check_interval)
    rebalance = Rebalance(share_staleness=settings.share_staleness)
    unserved = Unserved(staleness=staleness, metrics=metrics)
    rollup = RollUp(settings.rollup_retention)
    return [
        Task(name="check", interval=settings.leader_check_interval, run=_check, only_if_idle=True),
        Task(name="promote", interval=settings.promote_interval, run=Promotion().run, wake_topic=Topic.DUE),
        Task(name="rescue", interval=rescue_interval, run=stale, wake_topic=Topic.QUEUES),
        Task(name="gone", interval=settings.gone_after, run=gone),
        Task(name="deadlines", interval=settings.deadline_rescue_interval, run=overdue),
        Task(name="parents", interval=rescue_interval, run=Parents().run),
        Task(name="cron-sync", interval=settings.cron_sync_interval, run=cron_sync),
        Task(name="cron", interval=settings.cron_eval_interval, run=evaluate, wake_topic=Topic.CRON),
        Task(name="cleanup", interval=settings.cleanup_interval, run=cleanup.run, log_level=INFO),
        Task(name="aging", interval=settings.aging_check_interval, run=aging.run),
        Task(name="unserved", interval=settings.unserved_interval, run=unserved.run),
        Task(name="rebalance", interval=settings.rebalance_interval, run=rebalance.run, wake_topic=Topic.QUEUES),
        Task(name="rollup", interval=settings.rollup_interval, run=rollup.run),
        Task(name="invalid", interval=timedelta.max, run=invalid.run, only_after_invalid_data=True, log_level=INFO),
    ]


def one_shot_tasks(settings: Settings, schedules: Sequence[CronDefinition] = ()) -> dict[str, Task]:
    """Return the tasks that can run without a leader, by name."""
    return {task.name: task for task in all_tasks(settings, schedules, Metrics()) if not task.only_if_idle}


async def _check(session: Session) -> TaskResult:
    """Keep the session alive: PostgreSQL ends an idle one, and the leader must notice a dead one."""
    await session.connection.execute("SELECT 1")
    return TaskResult()
