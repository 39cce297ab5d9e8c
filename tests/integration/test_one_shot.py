"""Maintenance tasks that run once, from Python, and say what they changed."""

import inspect
from datetime import datetime

import pytest

import awa_py as awa
from awa_py import App, CleanupReport, Fire, Maintenance, Settings
from awa_py.maintenance.tasks import one_shot_tasks
from awa_py.store.session import Session
from tests.support import ago, insert, insert_completed, insert_running, look, put_one, seconds

pytestmark = pytest.mark.integration

DAY_S = 86_400


def test_every_task_has_a_method() -> None:  # F18
    methods = {name.replace("_", "-") for name, _ in inspect.getmembers(Maintenance, inspect.iscoroutinefunction)}
    assert methods - {"run"} == one_shot_tasks(Settings()).keys()


async def test_every_task_reports_nothing_for_an_empty_database(app: App) -> None:  # F23
    async with app:
        for name in one_shot_tasks(Settings()):
            report = await app.maintenance.run(name)
            method = getattr(app.maintenance, name.replace("-", "_"))
            assert type(report) is type(await method()) is inspect.get_annotations(method)["return"]
            assert (report.rows_changed, str(report)) == (0, "nothing to do")


async def test_cleanup_reports_what_it_deleted(app: App, session: Session) -> None:  # F23
    await insert_completed(session, 3, age_s=2 * DAY_S)
    await insert(session, "dead", 2, state="failed", finalized_at=ago(4 * DAY_S))
    async with app:
        report = await app.maintenance.cleanup()
        again = await app.maintenance.cleanup()
    assert report == CleanupReport(completed_jobs=3, dead_jobs=2)
    assert str(report) == "3 completed jobs, 2 dead jobs"
    assert again == CleanupReport()


async def test_report_covers_all_batches(app: App, session: Session) -> None:  # F23
    await insert_running(session, 700, silent_s=100)
    async with app:
        report = await app.maintenance.rescue()
    assert (len(report.rescued_jobs), report.rows_changed, str(report)) == (700, 700, "700 rescued jobs")


async def test_deadlines_reports_rescued_and_expired_jobs(app: App, session: Session) -> None:  # F23
    (running,) = await insert_running(session, deadline_at=ago(1))
    await insert(session, "ready", 2, expires_at=ago(1))
    async with app:
        report = await app.maintenance.deadlines()
    assert [(job.id, job.failed) for job in report.rescued_jobs] == [(running, False)]
    assert report.expired_jobs == 2


async def test_cron_reports_which_schedules_fired(app: App, session: Session) -> None:  # F23
    @app.cron("* * * * * *", misfire="all")
    @app.job
    async def tick() -> None: ...

    async with app:
        assert (await app.maintenance.cron_sync()).changed_schedules == ("tick",)
        await session.connection.execute(
            "UPDATE awa.cron SET effective_from = now() - interval '3 seconds', next_at = now()"
        )
        fires = (await app.maintenance.cron()).fires
        assert len(fires) >= 3
        for fire in fires:
            job = await look(session, fire.job_id)
            fire_time = datetime.fromisoformat(job.metadata["fire_time"])
            assert fire == Fire(schedule="tick", job_id=job.id, fire_time=fire_time)


async def test_cron_reports_schedules_that_it_disabled(app: App, session: Session) -> None:  # F23
    await session.connection.execute("INSERT INTO awa.cron (name, expression, kind) VALUES ('bad', 'nonsense', 'work')")
    async with app:
        assert (await app.maintenance.cron()).disabled_schedules == ("bad",)


async def test_promote_reports_the_number_of_jobs(app: App, session: Session) -> None:  # F23
    await insert(session, "scheduled", 3, state="scheduled", run_at=ago(1))
    await put_one(session, delay=seconds(60))
    async with app:
        assert (await app.maintenance.promote()).promoted_jobs == 3


async def test_unserved_reports_the_kinds(app: App, session: Session) -> None:  # F23
    await insert(session, "ready", 2, kind="unknown", run_at=ago(60))
    await session.connection.execute(
        "INSERT INTO awa.workers (id, hostname, pid, version, queues, kinds, concurrency) "
        "VALUES (gen_random_uuid(), 'h', 1, '0', '{default}', '{work}', 1)"
    )
    async with app:
        report = await app.maintenance.unserved()
    assert [(found.queue, found.kind, found.jobs) for found in report.unserved_kinds] == [("default", "unknown", 2)]
    assert report.rows_changed == 2


async def test_unknown_task_is_an_error_that_names_the_tasks(app: App) -> None:
    async with app:
        with pytest.raises(awa.ConfigError, match='unknown task "magic": use one of promote, rescue'):
            await app.maintenance.run("magic")
