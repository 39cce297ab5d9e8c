"""Schedules: written by the leader, fired once, disabled if they cannot fire."""

import asyncio
import json
import logging
import time
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from awa_py import App, ScheduleDeclared, State
from awa_py.db.database import Database
from awa_py.declaring import declare_schedules
from awa_py.maintenance.cron import evaluate, sync
from awa_py.model.registry import CronDefinition
from awa_py.store.schedules import (
    ScheduleRow,
    delete_schedule,
    disable_schedule,
    fire_schedule,
    list_due_schedules,
    list_schedules,
    pause_schedule,
    trigger_schedule,
    upsert_schedule,
)
from awa_py.store.session import Session
from tests.support import QUICK, another_session, count, drain, insert_queue, look, states

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
    """Insert a schedule of an app that became effective, and last fired, `since` ago."""
    await session.connection.execute(
        "INSERT INTO awa.cron (name, expression, timezone, misfire, kind, options, effective_from, last_enqueued_at, "
        "version) VALUES ($1, $2, $3, $4, $5, $6, now() - $7::text::interval, now() - $7::text::interval, '')",
        name,
        expression,
        timezone,
        misfire,
        kind,
        options,
        since,
    )


async def get_schedule(session: Session, name: str = "digest") -> ScheduleRow:
    (row,) = await list_schedules(session, name)
    return row


async def jobs(session: Session) -> list[dict[str, Any]]:
    rows = await session.connection.fetch("SELECT kind, metadata::text AS m, args::text AS a FROM awa.jobs ORDER BY id")
    return [{"kind": row["kind"], "metadata": json.loads(row["m"]), "args": json.loads(row["a"])} for row in rows]


class TestSync:  # A7
    async def test_sync_inserts_and_updates_schedules(self, session: Session) -> None:
        assert (await sync(session, [definition(), definition("other")])).rows_changed == 2
        assert (await sync(session, [definition(timezone="Pacific/Auckland", kind="send")])).rows_changed == 1
        row = await get_schedule(session)
        assert (row.expression, row.timezone, row.kind) == ("0 9 * * *", "Pacific/Auckland", "send")

    async def test_sync_never_deletes_a_schedule(self, session: Session) -> None:
        await sync(session, [definition("theirs")])
        await sync(session, [definition("ours")])
        assert [row.name for row in await list_schedules(session)] == ["ours", "theirs"]

    async def test_sync_does_not_write_an_unchanged_schedule(self, session: Session) -> None:
        await sync(session, [definition(args={"a": 1}, options={"queue": "mail", "tags": ["x"]})])
        before = await get_schedule(session)
        again = definition(args={"a": 1}, options={"tags": ["x"], "queue": "mail"})
        assert (await sync(session, [again])).rows_changed == 0
        assert await get_schedule(session) == before

    async def test_sync_does_not_resume_a_paused_schedule(self, session: Session) -> None:
        await sync(session, [definition()])
        await pause_schedule(session, "digest", paused=True)
        await sync(session, [definition()])
        await sync(session, [definition(expression="0 10 * * *")])
        row = await get_schedule(session)
        assert (row.paused, row.expression) == (True, "0 10 * * *")

    async def test_schedule_that_cannot_be_written_does_not_affect_the_others(
        self, session: Session, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert (await sync(session, [definition("x" * 300), definition("fine")])).rows_changed == 1
        assert [row.name for row in await list_schedules(session)] == ["fine"]
        assert "could not be written" in caplog.text

    async def test_schedule_of_an_app_has_the_options_of_its_job(self, database_url: str, session: Session) -> None:
        app = App(database_url)

        @app.cron(EVERY_MINUTE, timezone="Pacific/Auckland", name="tick", misfire="skip")
        @app.job(queue="mail", priority=1, max_attempts=3)
        async def send() -> None: ...

        await sync(session, app.registry.schedules)
        row = await get_schedule(session, "tick")
        assert (row.kind, row.timezone, row.misfire, row.args) == ("send", "Pacific/Auckland", "skip", {})
        job_id = await trigger_schedule(session, "tick")
        assert job_id is not None
        job = await look(session, job_id)
        assert (job.queue, job.priority, job.max_attempts, job.metadata["cron"]) == ("mail", 1, 3, "tick")

    async def test_new_expression_is_effective_from_now_on(self, session: Session) -> None:
        await add(session, expression="0 0 1 1 *", since="3000 days")
        await sync(session, [definition(expression=EVERY_MINUTE)])
        assert (await evaluate(session)).rows_changed == 0
        assert (await get_schedule(session)).next_at is not None

    async def test_new_expression_enables_a_disabled_schedule(self, session: Session) -> None:
        await add(session, expression="nonsense")
        await evaluate(session)
        assert not (await get_schedule(session)).enabled
        await sync(session, [definition()])
        row = await get_schedule(session)
        assert (row.enabled, row.last_error) == (True, None)


class TestVersions:
    """Only a newer declaration replaces one, and what an operator set is not replaced."""

    async def test_leader_of_the_old_version_does_not_revert_a_new_one(
        self, session: Session, caplog: pytest.LogCaptureFixture
    ) -> None:
        old, new = definition(version="1"), definition(expression="0 10 * * *", version="2")
        await sync(session, [old])
        await sync(session, [new])
        before = await get_schedule(session)
        assert (await sync(session, [old])).rows_changed == 0
        assert await get_schedule(session) == before
        assert "schedule digest is as the newer version 2 of the app declares it, not as version 1" in caplog.text
        await declare_schedules(session, [old], as_newest=True)  # after a rollback
        assert (await sync(session, [new])).rows_changed == 0
        assert (await get_schedule(session)).version == "1"

    async def test_old_and_new_leader_in_turns_skip_no_fire(self, session: Session) -> None:
        old, new = definition(expression=EVERY_SECOND, version="1"), definition(expression=EVERY_SECOND, version="2")
        new = replace(new, kind="send")
        await sync(session, [old])
        await sync(session, [new])
        fired = 0
        for _ in range(3):
            await asyncio.sleep(1.1)
            await sync(session, [old])
            fired += (await evaluate(session)).rows_changed
            await sync(session, [new])
        assert fired == 3
        assert {job["kind"] for job in await jobs(session)} == {"send"}

    async def test_change_does_not_skip_a_fire_that_is_due(self, session: Session) -> None:
        await add(session, expression="0 0 1 1 *")
        due = "UPDATE awa.cron SET next_at = date_trunc('minute', now()), last_enqueued_at = now() - interval '90 s'"
        await session.connection.execute(due)
        await sync(session, [definition(expression=EVERY_MINUTE, version="2")])
        assert (await evaluate(session)).rows_changed == 1

    async def test_schedule_of_an_operator_is_not_replaced_by_a_declaration(
        self, session: Session, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert await upsert_schedule(session, definition(expression=EVERY_MINUTE))
        assert (await sync(session, [definition(version="1")])).rows_changed == 0
        assert "schedule digest is as an operator set it" in caplog.text
        assert await upsert_schedule(session, definition(expression=EVERY_SECOND))
        assert await delete_schedule(session, "digest")
        assert (await sync(session, [definition(version="1")])).rows_changed == 1

    async def test_operator_cannot_change_or_delete_a_declared_schedule(self, session: Session) -> None:
        await sync(session, [definition(version="1")])
        before = await get_schedule(session)
        with pytest.raises(ScheduleDeclared, match='schedule "digest" is declared in code, by version 1 of the app'):
            await upsert_schedule(session, definition(expression=EVERY_MINUTE))
        with pytest.raises(ScheduleDeclared, match="`awa cron pause digest` stops it"):
            await delete_schedule(session, "digest")
        assert await get_schedule(session) == before
        assert await delete_schedule(session, "digest", even_if_declared=True)
        assert not await delete_schedule(session, "digest")

    async def test_worker_declares_its_schedules_at_its_start(self, database_url: str, session: Session) -> None:
        app = App(database_url, settings=QUICK, version="7")

        @app.cron("0 9 * * *", name="digest")
        @app.job
        async def send() -> None: ...

        async with app:
            await drain(app)
        row = await get_schedule(session)
        assert (row.kind, row.version) == ("send", "7")


class TestFire:  # A8
    async def test_misfires_become_one_job_with_the_fire_time_in_its_metadata(self, session: Session) -> None:
        await add(session)
        assert (await evaluate(session)).rows_changed == 1
        assert (await evaluate(session)).rows_changed == 0
        (job,) = await jobs(session)
        row = await get_schedule(session)
        assert job["kind"] == "work"
        assert job["metadata"]["cron"] == "digest"
        assert datetime.fromisoformat(job["metadata"]["fire_time"]) == row.last_enqueued_at
        assert row.last_enqueued_at is not None
        assert row.next_at == row.last_enqueued_at + timedelta(minutes=1)
        assert (row.last_enqueued_at.second, row.last_enqueued_at.microsecond) == (0, 0)

    async def test_month_of_misfires_every_second_is_handled_quickly(self, session: Session) -> None:
        await add(session, expression=EVERY_SECOND, since="30 days")
        began = time.monotonic()
        assert (await evaluate(session)).rows_changed == 1
        assert time.monotonic() - began < 2

    async def test_new_schedule_does_not_fire_for_the_past(self, session: Session) -> None:
        await sync(session, [definition(expression=EVERY_MINUTE)])
        batch = await evaluate(session)
        assert batch.rows_changed == 0
        assert batch.next_due_s is not None
        assert 0 <= batch.next_due_s <= 60

    async def test_fired_job_has_the_arguments_and_options_of_the_schedule(self, session: Session) -> None:
        options = {"queue": "mail", "priority": 1, "tags": ["t"], "metadata": {"own": 1}, "max_attempts": 2}
        await sync(session, [definition(expression=EVERY_MINUTE, args={"a": [1]}, options=options)])
        await session.connection.execute("UPDATE awa.cron SET effective_from = now() - interval '1 hour'")
        await evaluate(session)
        row = await session.connection.fetchrow("SELECT * FROM awa.ready")
        assert row is not None
        assert (row["queue"], row["priority"], row["tags"], row["max_attempts"]) == ("mail", 1, ["t"], 2)
        assert json.loads(row["args"]) == {"a": [1]}
        assert json.loads(row["metadata"]).keys() == {"own", "cron", "fire_time"}

    async def test_misfire_policy_skip_ignores_old_fire_times(self, session: Session) -> None:
        await add(session, expression="0 0 1 1 *", since="1000 days", misfire="skip")
        assert (await evaluate(session)).rows_changed == 0
        assert (await get_schedule(session)).last_enqueued_at is not None
        await add(session, "tick", EVERY_SECOND, misfire="skip")
        assert (await evaluate(session)).rows_changed == 1

    async def test_misfire_policy_all_enqueues_each_misfire_up_to_a_limit(self, session: Session) -> None:
        await add(session, since="5 minutes", misfire="all")
        assert (await evaluate(session)).rows_changed == 5
        fires = [job["metadata"]["fire_time"] for job in await jobs(session)]
        assert fires == sorted(set(fires))
        await add(session, "tick", EVERY_SECOND, since="1 day", misfire="all")
        assert (await evaluate(session)).rows_changed == 100
        assert (await evaluate(session)).rows_changed <= 2  # what became due in the meantime

    async def test_schedule_uses_its_own_timezone(self, session: Session) -> None:
        await add(session, expression="0 9 * * *", timezone="Pacific/Auckland", since="2 days")
        await evaluate(session)
        local = await session.connection.fetchval(
            "SELECT last_enqueued_at AT TIME ZONE 'Pacific/Auckland' FROM awa.cron"
        )
        assert (local.hour, local.minute) == (9, 0)

    async def test_due_schedules_fire_in_batches(self, session: Session) -> None:
        for n in range(150):
            # Not every minute: if a minute starts between the two calls, all of them are due again.
            await add(session, f"s{n}", expression="0 0 1 1 *", since="1000 days")
        first = await evaluate(session)
        assert (first.rows_changed, first.has_more) == (100, True)
        assert (await evaluate(session)).rows_changed == 50

    async def test_unique_job_that_still_waits_is_not_enqueued_again(self, session: Session) -> None:
        await add(session, options='{"unique_key": "k"}', since="1 day")
        await evaluate(session)
        await session.connection.execute(
            "UPDATE awa.cron SET last_enqueued_at = now() - interval '1 h', next_at = NULL"
        )
        await evaluate(session)
        assert await states(session) == {"available": 1}


class TestTwoLeaders:  # A9
    async def test_two_leaders_fire_a_schedule_once(self, session: Session, database: Database) -> None:
        await add(session)
        async with another_session(database) as other:
            for n in range(1, 31):
                first, second = await asyncio.gather(evaluate(session), evaluate(other))
                assert first.rows_changed + second.rows_changed == 1
                assert await count(session.connection, "SELECT count(*) FROM awa.ready") == n
                await session.connection.execute(
                    "UPDATE awa.cron SET last_enqueued_at = now() - interval '1 day', next_at = NULL"
                )

    async def test_leader_with_an_outdated_fire_time_enqueues_nothing(self, session: Session) -> None:
        await add(session)
        (seen,) = await list_due_schedules(session, limit=10)
        await evaluate(session)
        assert await fire_schedule(session, seen, fires=[seen.now], handled_until=seen.now, next_at=None) == []
        assert len(await jobs(session)) == 1

    async def test_schedule_paused_in_the_meantime_does_not_fire(self, session: Session) -> None:
        await add(session)
        (seen,) = await list_due_schedules(session, limit=10)
        await pause_schedule(session, "digest", paused=True)
        assert await fire_schedule(session, seen, fires=[seen.now], handled_until=seen.now, next_at=None) == []
        assert await jobs(session) == []

    async def test_schedule_disabled_in_the_meantime_does_not_fire(self, session: Session) -> None:
        await add(session)
        (seen,) = await list_due_schedules(session, limit=10)
        assert await disable_schedule(session, seen, "it cannot fire")
        assert await fire_schedule(session, seen, fires=[seen.now], handled_until=seen.now, next_at=None) == []
        assert await jobs(session) == []

    async def test_leader_with_an_outdated_expression_changes_nothing(self, session: Session) -> None:
        await add(session, expression="0 0 1 1 *", since="1000 days")
        (seen,) = await list_due_schedules(session, limit=10)
        await sync(session, [definition(expression=EVERY_MINUTE)])
        in_a_year = seen.now + timedelta(days=365)
        assert await fire_schedule(session, seen, fires=[seen.now], handled_until=seen.now, next_at=in_a_year) == []
        await evaluate(session)
        row = await get_schedule(session)
        assert row.next_at is not None
        assert row.next_at - seen.now < timedelta(minutes=5)


class TestDisabled:
    @pytest.mark.parametrize(
        ("columns", "text"),
        [
            ({"expression": "nonsense"}, "it has 1 fields"),
            ({"expression": ""}, "it has no fields"),
            ({"expression": "99 * * * *"}, "99"),
            ({"expression": "0 0 30 2 *"}, "never fires"),
            ({"expression": "R * * * *"}, "at random"),
            ({"timezone": "Mars/Phobos"}, 'timezone "Mars/Phobos" is unknown'),
            ({"timezone": ""}, "unknown"),
            ({"timezone": "../../etc/passwd"}, "unknown"),
            ({"timezone": "Europe/Zürich"}, "unknown"),
            ({"options": '{"priority": 9}'}, "priority_is_1_to_4"),
            ({"options": '{"max_attempts": "many"}'}, "smallint"),
        ],
    )
    async def test_invalid_schedule_is_disabled_and_does_not_affect_the_others(  # A8
        self, session: Session, caplog: pytest.LogCaptureFixture, columns: dict[str, str], text: str
    ) -> None:
        await add(session, "a bad one", **columns)
        await add(session, "b good one")
        with caplog.at_level(logging.ERROR):
            assert str((await evaluate(session)).report) == "1 fire, 1 disabled schedule"
            await evaluate(session)
        row = await get_schedule(session, "a bad one")
        assert not row.enabled
        assert row.last_error
        assert text in row.last_error
        assert len([record for record in caplog.records if "is disabled" in record.message]) == 1
        assert [job["metadata"]["cron"] for job in await jobs(session)] == ["b good one"]

    async def test_locked_schedule_is_tried_again_and_not_disabled(self, database: Database) -> None:
        async with another_session(database) as other, another_session(database, lock_timeout="100") as leader:
            await add(leader, "a held one")
            await add(leader, "b free one")
            async with other.connection.transaction():
                await other.connection.execute("SELECT * FROM awa.cron WHERE name = 'a held one' FOR UPDATE")
                assert (await evaluate(leader)).rows_changed == 1
            assert (await get_schedule(leader, "a held one")).enabled
            assert (await evaluate(leader)).rows_changed == 1


class TestPause:
    async def test_paused_schedule_does_not_fire(self, session: Session) -> None:
        await add(session)
        assert await pause_schedule(session, "digest", paused=True)
        assert (await evaluate(session)).rows_changed == 0

    async def test_resumed_schedule_does_not_fire_for_the_time_of_its_pause(self, session: Session) -> None:
        await add(session)
        await pause_schedule(session, "digest", paused=True)
        await pause_schedule(session, "digest", paused=False)
        assert (await evaluate(session)).rows_changed == 0
        row = await get_schedule(session)
        assert not row.paused
        assert row.next_at is not None

    async def test_commands_for_an_unknown_schedule_return_nothing(self, session: Session) -> None:
        assert not await pause_schedule(session, "unknown", paused=True)
        assert not await delete_schedule(session, "unknown")
        assert await trigger_schedule(session, "unknown") is None

    async def test_deleting_a_schedule_keeps_its_jobs(self, session: Session) -> None:
        await add(session)
        await evaluate(session)
        assert await delete_schedule(session, "digest", even_if_declared=True)
        assert await list_schedules(session) == []
        assert await states(session) == {"available": 1}


async def test_triggering_does_not_change_the_schedule(session: Session) -> None:
    await add(session, since="1 day")
    await insert_queue(session, paused=True)
    before = await get_schedule(session)
    job_id = await trigger_schedule(session, "digest")
    assert job_id is not None
    job = await look(session, job_id)
    assert (job.state, job.metadata["cron"]) == (State.AVAILABLE, "digest")
    assert "triggered_at" in job.metadata
    assert await get_schedule(session) == before
