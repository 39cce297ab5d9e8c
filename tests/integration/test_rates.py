"""Named rate limits of the whole cluster."""  # F14

import asyncio
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest

from awa_py import App, UnknownRateLimit
from awa_py.connections import Record
from awa_py.db.database import Database
from awa_py.model.rates import Rate
from awa_py.store.rate_limits import (
    TokenGrant,
    delete_rate_limit,
    drain_rate_limit,
    list_rate_limits,
    set_rate_limit,
    take_tokens,
)
from awa_py.store.session import Session
from tests.processes import FAST, processes
from tests.support import (
    another_session,
    count,
    eventually,
    seconds,
)

pytestmark = pytest.mark.integration

HOUR = timedelta(hours=1)


async def limit(session: Session, rate: str, burst: int | None = None, *, name: str = "gh") -> None:
    await set_rate_limit(session, name, Rate.parse(rate), burst)


async def take(session: Session, tokens: int = 1, *, callers: int = 1, max_wait_s: float = 60) -> TokenGrant:
    return await take_tokens(session, "gh", tokens=tokens, callers=callers, max_wait_s=max_wait_s)


async def bucket(session: Session) -> Record:
    """Return the row as it is stored."""
    row = await session.connection.fetchrow("SELECT * FROM awa.rate_limits WHERE name = 'gh'")
    assert row is not None
    return row


class TestTokens:
    async def test_one_token_is_given_to_one_of_two_connections(self, database: Database) -> None:  # F14
        async with another_session(database) as one, another_session(database) as other:
            for _ in range(20):
                await limit(one, "1/100s")
                answers = await asyncio.gather(take(one, max_wait_s=0), take(other, max_wait_s=0))
                assert sorted(len(answer.waits_s) for answer in answers) == [0, 1]
                (refused,) = [answer for answer in answers if not answer.waits_s]
                assert 90 < refused.next_s <= 100
                await delete_rate_limit(one, "gh")

    async def test_second_caller_is_promised_the_next_token(self, database: Database) -> None:
        async with another_session(database) as one, another_session(database) as other:
            await limit(one, "1/30s")
            answers = await asyncio.gather(take(one), take(other))
            first_s, second_s = sorted(answer.waits_s[0] for answer in answers)
            assert first_s == 0
            assert 25 < second_s <= 30

    async def test_callers_are_served_in_order_within_the_maximum_wait(self, session: Session) -> None:
        await limit(session, "1/10s")
        taken = await take(session, callers=5, max_wait_s=35)
        assert taken.waits_s == pytest.approx([0, 10, 20, 30])
        assert taken.next_s == pytest.approx(40)
        assert (await take(session, callers=5, max_wait_s=30)).waits_s == []

    async def test_refused_caller_takes_no_tokens(self, session: Session) -> None:
        await limit(session, "1/h")
        await take(session)
        for _ in range(5):
            refused = await take(session)
            assert not refused.waits_s
            assert 3500 < refused.next_s <= 3600
        assert (await bucket(session))["tokens"] >= 0

    async def test_concurrent_callers_take_exactly_the_tokens_added(self, database: Database, session: Session) -> None:
        """No token is given twice, and none is lost."""
        await limit(session, "1000/s", 1)
        before = await bucket(session)

        async def ask_repeatedly() -> int:
            async with another_session(database, synchronous_commit="off") as own:
                return sum([len((await take(own, callers=1 + n % 3)).waits_s) for n in range(60)])

        granted = sum(await asyncio.gather(*(ask_repeatedly() for _ in range(8))))
        assert granted == 8 * 120
        after = await bucket(session)
        came = (after["refilled_at"] - before["refilled_at"]).total_seconds() * 1000
        lost_to_burst = before["tokens"] + came - granted - after["tokens"]
        assert lost_to_burst >= -0.01
        assert after["tokens"] < 1 or lost_to_burst < 0.01

    async def test_caller_waits_for_more_tokens_than_the_bucket_holds(self, session: Session) -> None:
        await limit(session, "1/s")
        taken = await take(session, tokens=10)
        assert taken.waits_s == pytest.approx([9])
        assert taken.fastest_s == 9

    async def test_tokens_of_an_hour_are_given_once(self, session: Session) -> None:
        await limit(session, "5000/h")
        assert (await bucket(session))["burst"] == 1
        assert len((await take(session, callers=5000, max_wait_s=0)).waits_s) == 1
        await limit(session, "100/s", name="fast")
        assert [row.burst for row in await list_rate_limits(session)] == [100, 1]

    async def test_burst_is_available_after_a_pause(self, session: Session) -> None:
        await limit(session, "1/h", 50)
        assert (await take(session, callers=60, max_wait_s=0)).waits_s == [0] * 50
        await session.connection.execute("UPDATE awa.rate_limits SET refilled_at = refilled_at - interval '1 year'")
        assert (await take(session, callers=60, max_wait_s=0)).waits_s == [0] * 50

    async def test_clock_that_is_set_back_delays_no_tokens(self, session: Session) -> None:
        await limit(session, "1/10s")
        await session.connection.execute(
            "UPDATE awa.rate_limits SET tokens = 0, refilled_at = clock_timestamp() + interval '1 hour'"
        )
        assert (await take(session)).waits_s == [10]
        assert 5 < (await take(session, max_wait_s=0)).next_s <= 20

    async def test_error_of_an_unknown_rate_limit_names_it(self, session: Session) -> None:  # F14
        unknown = 'there is no rate limit "gh": `awa rate set gh 5000/h` creates one'
        with pytest.raises(UnknownRateLimit) as raised:
            await take(session)
        assert str(raised.value) == unknown
        for change in (drain_rate_limit, delete_rate_limit):
            with pytest.raises(UnknownRateLimit, match="no rate limit"):
                await change(session, "gh")

    async def test_invalid_rate_limit_is_refused(self, session: Session) -> None:
        wrong = ("count = 0", "period = '0'", "burst = 0", "name = ''", r"name = E'a\tb'", "name = repeat('x', 201)")
        await limit(session, "1/s")
        for setting in wrong:
            with pytest.raises(asyncpg.CheckViolationError):
                await session.connection.execute(f"UPDATE awa.rate_limits SET {setting}")


class TestChanges:
    async def test_drained_bucket_refills_at_its_rate(self, session: Session) -> None:
        await limit(session, "1/10s", 100)
        await drain_rate_limit(session, "gh")
        refused = await take(session, max_wait_s=0)
        assert not refused.waits_s
        assert 5 < refused.next_s <= 10

    async def test_bucket_drained_for_a_period_gives_no_tokens_in_it(self, session: Session) -> None:
        await limit(session, "10/s", 100)
        for _ in range(2):  # a second drain does not add up
            await drain_rate_limit(session, "gh", seconds(600))
        refused = await take(session)
        assert not refused.waits_s
        assert 590 < refused.next_s <= 600.1
        (listed,) = await list_rate_limits(session)
        assert 590 < listed.wait_s <= 600.1

    async def test_drain_keeps_promised_tokens(self, session: Session) -> None:
        await limit(session, "1/s")
        await take(session, callers=31)
        await drain_rate_limit(session, "gh", seconds(10))
        assert 25 < (await take(session, max_wait_s=0)).next_s <= 31

    async def test_changed_rate_limit_keeps_its_tokens(self, session: Session) -> None:
        await limit(session, "1/h", 100)
        await take(session, callers=40)
        await limit(session, "1/h", 80)
        assert (await take(session, callers=100, max_wait_s=0)).waits_s == [0] * 60
        await limit(session, "1/h", 200)
        assert not (await take(session, max_wait_s=0)).waits_s

    async def test_changed_rate_keeps_the_wait_for_promised_tokens(self, session: Session) -> None:
        await limit(session, "100/s", 1)
        await drain_rate_limit(session, "gh", seconds(600))
        await limit(session, "1/m")
        assert 640 < (await take(session)).next_s <= 660


async def test_four_processes_together_keep_the_rate(
    client: App, session: Session, database_url: str, tmp_path: Path
) -> None:  # F14
    """By the database's clock: each token is promised for a time and used after it, however late a process wakes up."""
    rate, total = 50, 600
    await limit(session, f"{rate}/s", 1)
    # Records the tokens of each update, and the time that they are promised for.
    await session.connection.execute(
        """CREATE TABLE public.promises (due timestamptz);
        CREATE FUNCTION public.promise() RETURNS trigger LANGUAGE plpgsql AS $$
        DECLARE
            had float8 := least(old.burst, old.tokens
                                + extract(epoch FROM new.refilled_at - old.refilled_at)::float8 / old.token_s);
        BEGIN
            INSERT INTO public.promises
            SELECT new.refilled_at + greatest(0, n - had) * old.token_s * interval '1 second'
            FROM generate_series(1, round(had - new.tokens)::int) AS n;
            RETURN new;
        END $$;
        CREATE TRIGGER promise BEFORE UPDATE ON awa.rate_limits FOR EACH ROW EXECUTE FUNCTION public.promise()"""
    )
    await client.enqueue_many([client.new("limited", {"name": "gh"}) for _ in range(total)])
    with processes(tmp_path, database_url, {**FAST, "AWA_HEARTBEAT_STALENESS": "30s"}) as started:
        for _ in range(4):
            started.worker("--concurrency", "50")

        async def all_jobs_are_done() -> bool:
            return await count(session.connection, "SELECT count(*) FROM awa.completed") == total

        await eventually(all_jobs_are_done, 90)
    workers = await count(session.connection, "SELECT count(DISTINCT worker_id) FROM awa.completed")
    assert workers == 4
    promised = [row["due"] for row in await session.connection.fetch("SELECT due FROM public.promises ORDER BY due")]
    used = await session.connection.fetch("SELECT finalized_at AS at FROM awa.completed ORDER BY finalized_at")
    assert len(promised) == len(used) == total
    # The n-th use is never before the n-th token.
    assert all(use["at"] >= due for use, due in zip(used, promised, strict=True))
    # While there were always callers, exactly the tokens that were added were taken.
    steady = [due for due in promised if seconds(2) <= due - promised[0] < seconds(10)]
    assert len(steady) == pytest.approx(8 * rate, abs=0.02 * 8 * rate + 1)
