"""Signals that race with their job's wait: none is lost, and without each protection some are.

The functions of the database get pauses between their statements, so that the races reach every interleaving.
"""

import asyncio
import random

import asyncpg
import pytest

from awa_py import App, Context
from awa_py.connections import Connection
from awa_py.store.session import Session
from tests.support import count, eventually, nothing_runs, working

pytestmark = pytest.mark.integration

RACES = 5_000
FEWER_RACES = 500
SENDERS = 20
SLOTS = 100
PAUSE = "PERFORM pg_sleep(random() / 1000);\n"
# A waiting job whose signal is there: it would never be woken.
LOST = """SELECT count(*) FROM awa.scheduled JOIN awa.signals ON job_id = scheduled.id
          WHERE state = 'waiting' AND waits -> 'signals' ? name"""


async def change_function(connection: Connection, name: str, *changes: tuple[str, str]) -> None:
    """Replace parts of a function's text."""
    text = await connection.fetchval("SELECT pg_get_functiondef($1::text::regproc)", f"awa.{name}")
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    await connection.execute(text)


async def add_pauses(connection: Connection) -> None:
    await change_function(
        connection,
        "deliver_signal",
        ("PERFORM FROM", f"{PAUSE}PERFORM FROM"),
        ("RETURN NULL;", f"{PAUSE}RETURN NULL;"),
    )
    await change_function(
        connection,
        "suspend_jobs",
        ("signalled := ", f"{PAUSE}signalled := "),
        ("RETURN QUERY", f"{PAUSE}RETURN QUERY"),
    )


class Race:
    """Jobs that wait for a signal, and senders that send it at about that time: sometimes earlier, sometimes later."""

    def __init__(self, app: App, session: Session) -> None:
        self._app = app
        self._session = session
        self._begun: asyncio.Queue[int] = asyncio.Queue()
        self._called: set[int] = set()

        @app.job
        async def race(ctx: Context) -> int:
            if ctx.job.id not in self._called:  # its lease does not tell: a job is released if it waits for a slot
                self._called.add(ctx.job.id)
                self._begun.put_nowait(ctx.job.id)
                await asyncio.sleep(random_delay_s())
            signal = await ctx.wait_signal("go", int)
            assert signal is not None
            return signal.data

    async def run(self, races: int) -> int:
        """Run many races. Return how many signals have been lost by then."""
        async with self._app as app, working(app, {"default": SLOTS}, concurrency=SLOTS):
            await app.enqueue_many([app.new("race") for _ in range(races)])
            await asyncio.gather(*(self._send(races // SENDERS) for _ in range(SENDERS)))
            await eventually(lambda: nothing_runs(self._session), timeout_s=60)
        lost = await count(self._session.connection, LOST)
        waiting = await count(self._session.connection, "SELECT count(*) FROM awa.scheduled")
        assert waiting == lost
        return lost

    async def _send(self, signals: int) -> None:
        connection = await asyncpg.connect(self._app.database.url)
        for _ in range(signals):
            job_id = await self._begun.get()
            await asyncio.sleep(random_delay_s())
            await connection.execute("SELECT awa.signal($1, 'go', '1')", job_id)
        await connection.close()


def random_delay_s() -> float:
    """Return 0, or up to 30 ms, of any order of magnitude: what is a short time depends on the machine."""
    return random.choice((0.0, 10 ** random.uniform(-4, -1.5)))


@pytest.fixture
def race(app: App, session: Session) -> Race:
    return Race(app, session)


@pytest.mark.parametrize("paused", [False, True], ids=["as it is", "with pauses"])
async def test_no_signal_that_races_with_its_wait_is_lost(race: Race, session: Session, paused: bool) -> None:
    if paused:
        await add_pauses(session.connection)
    assert await race.run(RACES) == 0
    suspended = await count(session.connection, "SELECT count(*) FROM awa.completed WHERE lease > 1")
    assert 0 < suspended < RACES  # some signals came before the wait


@pytest.mark.parametrize(
    ("function", "protection", "without"),
    [
        ("deliver_signal", "FOR KEY SHARE", ""),
        ("deliver_signal", "AND coalesce(waits -> 'signals' ? NEW.name, false) IS FALSE", ""),
        ("suspend_jobs", "(waits_of ->> job_id::text)::jsonb -> 'signals' ? name", "false"),
        ("suspend_jobs", "FOR UPDATE SKIP LOCKED", ""),
    ],
    ids=["the sender's lock", "the look what the job waits for", "the second look", "the lock of the job"],
)
async def test_signals_are_lost_without(
    race: Race, session: Session, function: str, protection: str, without: str
) -> None:
    await change_function(session.connection, function, (protection, without))
    await add_pauses(session.connection)
    for _ in range(RACES // FEWER_RACES):
        if await race.run(FEWER_RACES):
            return
    raise AssertionError(f"{RACES} races lost nothing")
