"""Schedules as rows: synced from code, fired once, disabled when they cannot fire."""

import asyncio
import json
import logging
import time
from datetime import datetime, timedelta
from typing import Any

import pytest

from awa_py import App, State
from awa_py.db.database import Database
from awa_py.maintenance.cron import evaluate, sync
from awa_py.model.registry import CronDefinition
from awa_py.store.schedules import (
    ScheduleRow,
    delete_schedule,
    fire_schedule,
    list_due_schedules,
    list_schedules,
    pause_schedule,
    trigger_schedule,
)
from awa_py.store.session import Session
from tests.support import another_session, count, insert_queue, look, states

pytestmark = pytest.mark.integration

EVERY_MINUTE = "* * * * *"
EVERY_SECOND = "* * * * * *"


def definition(name: str = "digest", expression: str = "0 9 * * *", **fields: Any) -> CronDefinition:
    return CronDefinition(**{"name": name, "expression": expression, "timezone": "UTC", "kind": "work", **fields})


async def add(
    session: Session,
    name: str = "digest",
    expression: str = EVERY_MINUTE,
    *,
    since: str = "1 day",
    timezone: str = "UTC",
    misfire: str = "one",
    kind: str = "work",
    options: str = "{}",
) -> None:
    """A schedule that has been effective for a while, and fired last when that began."""
    await session.connection.execute(
        "INSERT INTO awa.cron (name, expression, timezone, misfire, kind, options, effective_from, last_enqueued_at) "
        "VALUES ($1, $2, $3, $4, $5, $6, now() - $7::text::interval, now() - $7::text::interval)",
        name,
        expression,
        timezone,
        misfire,
        kind,
        options,
        since,
    )


async def show(session: Session, name: str = "digest") -> ScheduleRow:
    (row,) = await list_schedules(session, name)
    return row


async def jobs(session: Session) -> list[dict[str, Any]]:
    rows = await session.connection.fetch("SELECT kind, metadata::text AS m, args::text AS a FROM awa.jobs ORDER BY id")
    return [{"kind": row["kind"], "metadata": json.loads(row["m"]), "args": json.loads(row["a"])} for row in rows]


class TestSync:  # A7
    async def test_it_adds_and_updates(self, session: Session) -> None:
        assert (await sync(session, [definition(), definition("other")])).rows_changed == 2
        assert (await sync(session, [definition(timezone="Pacific/Auckland", kind="send")])).rows_changed == 1
        row = await show(session)
        assert (row.expression, row.timezone, row.kind) == ("0 9 * * *", "Pacific/Auckland", "send")

    async def test_it_never_deletes(self, session: Session) -> None:
        await sync(session, [definition("theirs")])
        await sync(session, [definition("ours")])
        assert [row.name for row in await list_schedules(session)] == ["ours", "theirs"]

    async def test_an_unchanged_schedule_is_not_touched(self, session: Session) -> None:
        await sync(session, [definition(args={"a": 1}, options={"queue": "mail", "tags": ["x"]})])
        before = await show(session)
        again = definition(args={"a": 1}, options={"tags": ["x"], "queue": "mail"})
        assert (await sync(session, [again])).rows_changed == 0
        assert await show(session) == before

    async def test_a_pause_survives_a_sync_and_an_update(self, session: Session) -> None:
        await sync(session, [definition()])
        await pause_schedule(session, "digest", paused=True)
        await sync(session, [definition()])
        await sync(session, [definition(expression="0 10 * * *")])
        row = await show(session)
        assert (row.paused, row.expression) == (True, "0 10 * * *")

    async def test_one_that_cannot_be_written_does_not_stop_the_others(
        self, session: Session, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert (await sync(session, [definition("x" * 300), definition("fine")])).rows_changed == 1
        assert [row.name for row in await list_schedules(session)] == ["fine"]
        assert "could not be written" in caplog.text

    async def test_what_an_app_declares_arrives_with_its_options(self, database_url: str, session: Session) -> None:
        app = App(database_url)

        @app.cron(EVERY_MINUTE, timezone="Pacific/Auckland", name="tick", misfire="skip")
        @app.job(queue="mail", priority=1, max_attempts=3)
        async def send() -> None: ...

        await sync(session, app.registry.schedules)
        row = await show(session, "tick")
        assert (row.kind, row.timezone, row.misfire, row.args) == ("send", "Pacific/Auckland", "skip", {})
        job_id = await trigger_schedule(session, "tick")
        assert job_id is not None
        job = await look(session, job_id)
        assert (job.queue, job.priority, job.max_attempts, job.metadata["cron"]) == ("mail", 1, 3, "tick")

    async def test_a_new_expression_counts_from_now(self, session: Session) -> None:
        await add(session, expression="0 0 1 1 *", since="3000 days")
        await sync(session, [definition(expression=EVERY_MINUTE)])
        assert (await evaluate(session)).rows_changed == 0
        assert (await show(session)).next_at is not None

    async def test_a_disabled_schedule_gets_another_chance_with_its_new_expression(self, session: Session) -> None:
        await add(session, expression="nonsense")
        await evaluate(session)
        assert not (await show(session)).enabled
        await sync(session, [definition()])
        row = await show(session)
        assert (row.enabled, row.last_error) == (True, None)


class TestFire:  # A8
    async def test_a_missed_fire_becomes_one_job_that_says_why_it_is_there(self, session: Session) -> None:
        await add(session)
        assert (await evaluate(session)).rows_changed == 1
        assert (await evaluate(session)).rows_changed == 0
        (job,) = await jobs(session)
        row = await show(session)
        assert job["kind"] == "work"
        assert job["metadata"]["cron"] == "digest"
        assert datetime.fromisoformat(job["metadata"]["fire_time"]) == row.last_enqueued_at
        assert row.last_enqueued_at is not None
        assert row.next_at == row.last_enqueued_at + timedelta(minutes=1)
        assert (row.last_enqueued_at.second, row.last_enqueued_at.microsecond) == (0, 0)

    async def test_a_month_of_an_every_second_schedule_is_one_job_and_quick(self, session: Session) -> None:
        await add(session, expression=EVERY_SECOND, since="30 days")
        began = time.monotonic()
        assert (await evaluate(session)).rows_changed == 1
        assert time.monotonic() - began < 2

    async def test_a_new_schedule_does_not_fire_for_the_past(self, session: Session) -> None:
        await sync(session, [definition(expression=EVERY_MINUTE)])
        batch = await evaluate(session)
        assert batch.rows_changed == 0
        assert batch.next_due_s is not None
        assert 0 <= batch.next_due_s <= 60

    async def test_args_and_options_go_with_it(self, session: Session) -> None:
        options = {"queue": "mail", "priority": 1, "tags": ["t"], "metadata": {"own": 1}, "max_attempts": 2}
        await sync(session, [definition(expression=EVERY_MINUTE, args={"a": [1]}, options=options)])
        await session.connection.execute("UPDATE awa.cron SET effective_from = now() - interval '1 hour'")
        await evaluate(session)
        row = await session.connection.fetchrow("SELECT * FROM awa.ready")
        assert row is not None
        assert (row["queue"], row["priority"], row["tags"], row["max_attempts"]) == ("mail", 1, ["t"], 2)
        assert json.loads(row["args"]) == {"a": [1]}
        assert json.loads(row["metadata"]).keys() == {"own", "cron", "fire_time"}

    async def test_skip_misses_what_is_long_past(self, session: Session) -> None:
        await add(session, expression="0 0 1 1 *", since="1000 days", misfire="skip")
        assert (await evaluate(session)).rows_changed == 0
        assert (await show(session)).last_enqueued_at is not None
        await add(session, "tick", EVERY_SECOND, misfire="skip")
        assert (await evaluate(session)).rows_changed == 1

    async def test_all_makes_up_for_each_and_is_bounded(self, session: Session) -> None:
        await add(session, since="5 minutes", misfire="all")
        assert (await evaluate(session)).rows_changed == 5
        fires = [job["metadata"]["fire_time"] for job in await jobs(session)]
        assert fires == sorted(set(fires))
        await add(session, "tick", EVERY_SECOND, since="1 day", misfire="all")
        assert (await evaluate(session)).rows_changed == 100
        assert (await evaluate(session)).rows_changed <= 2  # what came due meanwhile

    async def test_a_schedule_goes_by_its_own_timezone(self, session: Session) -> None:
        await add(session, expression="0 9 * * *", timezone="Pacific/Auckland", since="2 days")
        await evaluate(session)
        local = await session.connection.fetchval(
            "SELECT last_enqueued_at AT TIME ZONE 'Pacific/Auckland' FROM awa.cron"
        )
        assert (local.hour, local.minute) == (9, 0)

    async def test_many_due_schedules_come_in_batches(self, session: Session) -> None:
        for n in range(150):
            # Not every minute: one may begin between the two, and all are due again.
            await add(session, f"s{n}", expression="0 0 1 1 *", since="1000 days")
        first = await evaluate(session)
        assert (first.rows_changed, first.has_more) == (100, True)
        assert (await evaluate(session)).rows_changed == 50

    async def test_a_unique_job_that_still_waits_is_not_doubled(self, session: Session) -> None:
        await add(session, options='{"unique_key": "k"}', since="1 day")
        await evaluate(session)
        await session.connection.execute(
            "UPDATE awa.cron SET last_enqueued_at = now() - interval '1 h', next_at = NULL"
        )
        await evaluate(session)
        assert await states(session) == {"available": 1}


class TestTwoEvaluators:  # A9
    async def test_of_two_at_once_one_wins(self, session: Session, database: Database) -> None:
        await add(session)
        async with another_session(database) as other:
            for n in range(1, 31):
                first, second = await asyncio.gather(evaluate(session), evaluate(other))
                assert first.rows_changed + second.rows_changed == 1
                assert await count(session.connection, "SELECT count(*) FROM awa.ready") == n
                await session.connection.execute(
                    "UPDATE awa.cron SET last_enqueued_at = now() - interval '1 day', next_at = NULL"
                )

    async def test_one_that_has_seen_an_older_mark_enqueues_nothing(self, session: Session) -> None:
        await add(session)
        (seen,) = await list_due_schedules(session, limit=10)
        await evaluate(session)
        assert await fire_schedule(session, seen, fires=[seen.now], handled_until=seen.now, next_at=None) == []
        assert len(await jobs(session)) == 1

    async def test_one_that_has_seen_an_older_expression_changes_nothing(self, session: Session) -> None:
        await add(session, expression="0 0 1 1 *", since="1000 days")
        (seen,) = await list_due_schedules(session, limit=10)
        await sync(session, [definition(expression=EVERY_MINUTE)])
        in_a_year = seen.now + timedelta(days=365)
        assert await fire_schedule(session, seen, fires=[seen.now], handled_until=seen.now, next_at=in_a_year) == []
        await evaluate(session)
        row = await show(session)
        assert row.next_at is not None
        assert row.next_at - seen.now < timedelta(minutes=5)


class TestDisabled:
    @pytest.mark.parametrize(
        ("columns", "says"),
        [
            ({"expression": "nonsense"}, "it has 1 fields"),
            ({"expression": ""}, "it has no fields"),
            ({"expression": "99 * * * *"}, "99"),
            ({"expression": "0 0 30 2 *"}, "never fires"),
            ({"expression": "R * * * *"}, "by chance"),
            ({"timezone": "Mars/Phobos"}, 'timezone "Mars/Phobos" is unknown'),
            ({"timezone": ""}, "unknown"),
            ({"timezone": "../../etc/passwd"}, "unknown"),
            ({"timezone": "Europe/Zürich"}, "unknown"),
            ({"kind": ""}, "kind_is_a_name"),
            ({"options": '{"priority": 9}'}, "priority_is_1_to_4"),
            ({"options": '{"max_attempts": "many"}'}, "smallint"),
            ({"options": "[]"}, ""),
        ],
    )
    async def test_a_bad_row_is_disabled_once_and_harms_no_other(  # A8
        self, session: Session, caplog: pytest.LogCaptureFixture, columns: dict[str, str], says: str
    ) -> None:
        await add(session, "a bad one", **columns)
        await add(session, "b good one")
        with caplog.at_level(logging.ERROR):
            assert (await evaluate(session)).rows_changed == 1
            await evaluate(session)
        row = await show(session, "a bad one")
        assert not row.enabled
        assert row.last_error
        assert says in row.last_error
        assert len([record for record in caplog.records if "is disabled" in record.message]) == 1
        assert [job["metadata"]["cron"] for job in await jobs(session)] == ["b good one"]

    async def test_a_row_that_somebody_holds_is_tried_again_and_not_disabled(self, database: Database) -> None:
        async with another_session(database) as other, another_session(database, lock_timeout="100") as leader:
            await add(leader, "a held one")
            await add(leader, "b free one")
            async with other.connection.transaction():
                await other.connection.execute("SELECT * FROM awa.cron WHERE name = 'a held one' FOR UPDATE")
                assert (await evaluate(leader)).rows_changed == 1
            assert (await show(leader, "a held one")).enabled
            assert (await evaluate(leader)).rows_changed == 1


class TestPause:
    async def test_a_paused_schedule_does_not_fire(self, session: Session) -> None:
        await add(session)
        assert await pause_schedule(session, "digest", paused=True)
        assert (await evaluate(session)).rows_changed == 0

    async def test_a_resumed_one_does_not_make_up_for_it(self, session: Session) -> None:
        await add(session)
        await pause_schedule(session, "digest", paused=True)
        await pause_schedule(session, "digest", paused=False)
        assert (await evaluate(session)).rows_changed == 0
        row = await show(session)
        assert not row.paused
        assert row.next_at is not None

    async def test_an_unknown_schedule_is_answered_no(self, session: Session) -> None:
        assert not await pause_schedule(session, "nobody", paused=True)
        assert not await delete_schedule(session, "nobody")
        assert await trigger_schedule(session, "nobody") is None

    async def test_a_deleted_schedule_leaves_its_jobs(self, session: Session) -> None:
        await add(session)
        await evaluate(session)
        assert await delete_schedule(session, "digest")
        assert await list_schedules(session) == []
        assert await states(session) == {"available": 1}


async def test_a_trigger_does_not_change_the_schedule(session: Session) -> None:
    await add(session, since="1 day")
    await insert_queue(session, paused=True)
    before = await show(session)
    job_id = await trigger_schedule(session, "digest")
    assert job_id is not None
    job = await look(session, job_id)
    assert (job.state, job.metadata["cron"]) == (State.AVAILABLE, "digest")
    assert "triggered_at" in job.metadata
    assert await show(session) == before
