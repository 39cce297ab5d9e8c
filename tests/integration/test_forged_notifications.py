"""Every login can send notifications. They make processes look at the tables, and nothing else."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from awa_py import App, Context, State
from awa_py.connections import Connection
from awa_py.db.database import Database
from awa_py.db.listener import Topic, parse_notification
from tests.proxy import CountingProxy, counting_proxy
from tests.support import QUICK, eventually, sample, working

pytestmark = pytest.mark.integration


@pytest.fixture
async def stranger(database: Database, connection: Connection) -> AsyncIterator[Connection]:
    """A session of a login without any right in the schema."""
    role = f"forger_{uuid4().hex}"
    await connection.execute(f"CREATE ROLE {role}")
    forger = await database.connect("forger")
    await forger.execute(f"SET ROLE {role}")
    yield forger
    await forger.close()
    await connection.execute(f"DROP ROLE {role}")


@pytest.fixture
async def wire(database_url: str) -> AsyncIterator[tuple[App, CountingProxy]]:
    async with counting_proxy(database_url) as (url, counted):
        app = App(url, settings=QUICK)

        @app.job
        async def wait(ctx: Context) -> None:
            await ctx.wait_cancelled()

        yield app, counted


def checks(counted: CountingProxy) -> Callable[[], int]:
    return lambda: counted.count("heartbeat", "check_leases")


@pytest.mark.parametrize("topic", [Topic.CANCEL, Topic.LOST])
async def test_forged_notification_neither_cancels_nor_drops_a_running_job(
    wire: tuple[App, CountingProxy], stranger: Connection, topic: Topic
) -> None:
    app, counted = wire
    async with app:
        job = await app.enqueue("wait")
        async with working(app) as worker:
            await eventually(lambda: is_running(app, job.id))
            looked = checks(counted)()
            await stranger.execute(f"SELECT pg_notify('awa', '{topic}:{job.id}:1')")
            await eventually(lambda: checks(counted)() > looked)
            renewed = counted.count("heartbeat", "renew_leases")
            await eventually(lambda: counted.count("heartbeat", "renew_leases") > renewed)
            found = await app.get(job.id)
            assert (found.state, found.attempt, found.errors) == (State.RUNNING, 1, [])
            assert sample(worker, "awa_lost_leases_total") == 0
            assert await app.cancel(job.id)  # a real request is in the job's row
            await eventually(lambda: is_in(app, job.id, State.CANCELLED))


async def test_real_request_is_noticed_at_once(wire: tuple[App, CountingProxy]) -> None:
    app, counted = wire
    async with app:
        job = await app.enqueue("wait")
        async with working(app):
            await eventually(lambda: is_running(app, job.id))
            await app.cancel(job.id)
            await eventually(lambda: is_in(app, job.id, State.CANCELLED))
    assert counted.count("heartbeat", "check_leases") == 1


async def test_malformed_notifications_are_counted_and_the_first_is_logged(
    wire: tuple[App, CountingProxy], stranger: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    app, _ = wire
    malformed = [
        "",
        "cancel",
        "cancel:",
        "cancel:x:1",
        "cancel:1:2:3",
        f"cancel:{'9' * 5000}:1",
        "no:such",
        "due:x",
    ]
    with caplog.at_level(logging.WARNING, "awa.notify"):
        async with app, working(app) as worker:
            for payload in malformed:
                await stranger.execute("SELECT pg_notify('awa', $1)", payload)
            await eventually(lambda: sample(worker, "awa_malformed_notifications_total") == len(malformed))
            job = await app.enqueue("wait")
            await eventually(lambda: is_running(app, job.id))
            await app.cancel(job.id)
            await eventually(lambda: is_in(app, job.id, State.CANCELLED))
    logged = [record for record in caplog.records if "malformed" in record.message]
    assert len(logged) == 1
    assert "channel awa" in logged[0].message


# Texts near the real ones, and any others.
payloads = st.one_of(
    st.text(),
    st.builds(
        "{}:{}".format,
        st.sampled_from([topic.value for topic in Topic]),
        st.one_of(st.text(), st.integers().map(str), st.builds("{}:{}".format, st.integers(), st.integers())),
    ),
)


@given(payloads)
@hypothesis_settings(max_examples=5_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_payload_is_parsed_or_refused(payload: str) -> None:
    notification = parse_notification(payload)
    if notification is None:
        return
    assert f"{notification.topic}:{notification.subject}".rstrip(":") == payload.rstrip(":")
    if notification.topic in (Topic.CANCEL, Topic.LOST):
        job_id, lease = notification.job
        assert 0 <= job_id < 2**63
        assert 0 <= lease < 2**31


async def test_worker_and_leader_outlive_any_notification(
    wire: tuple[App, CountingProxy], connection: Connection
) -> None:
    app, _ = wire
    generated: list[str] = []

    @given(payloads.filter(lambda text: "\0" not in text and len(text.encode(errors="replace")) < 7_000))
    @hypothesis_settings(max_examples=2_000, deadline=None, database=None)
    def generate(payload: str) -> None:
        generated.append(payload.encode(errors="replace").decode())

    await asyncio.to_thread(generate)
    async with app, working(app, maintenance=True) as worker:
        job = await app.enqueue("wait")
        await eventually(lambda: is_running(app, job.id))
        for channel in ("awa", "awa:leader"):
            await connection.execute(
                "SELECT count(pg_notify($1, payload)) FROM unnest($2::text[]) AS payload", channel, generated
            )
        expected = 2 * sum(parse_notification(payload) is None for payload in set(generated))
        await eventually(lambda: sample(worker, "awa_malformed_notifications_total") >= expected)
        assert await is_running(app, job.id)
        await app.cancel(job.id)
        await eventually(lambda: is_in(app, job.id, State.CANCELLED))


async def is_in(app: App, job_id: int, state: State) -> bool:
    return (await app.get(job_id)).state is state


async def is_running(app: App, job_id: int) -> bool:
    return await is_in(app, job_id, State.RUNNING)
