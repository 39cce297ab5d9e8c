"""The way to PostgreSQL: what stands in between, whether notifications come through, whether clocks agree."""

import asyncio
import time
from collections.abc import Callable
from uuid import uuid4

from awa_py.db.errors import CONNECTION_LOST, CONNECTION_REFUSED
from awa_py.db.pooler import PoolerMode, detect_pooler
from awa_py.db.types import Connection
from awa_py.doctor.context import CheckContext, connect
from awa_py.doctor.finding import Findings
from awa_py.errors import ConfigError, DatabaseUnavailable
from awa_py.text import describe

ROUND_TRIP_S = 5.0
ASKED = 3
SKEW_S = 1.0
LARGE_SKEW_S = 60.0
CROWDED = 0.1  # of the queue of notifications
DIRECT = "Set AWA_DIRECT_URL (--direct-url) to a URL of this database that leads to PostgreSQL itself."


async def check_pooler(context: CheckContext, notes: Findings) -> None:
    """Sessions are sessions: what one sets, locks or listens to stays with it."""
    mode = await _mode(context)
    if mode is PoolerMode.TRANSACTION:
        notes.problem(
            "transaction mode",
            "A pooler in transaction mode stands in between: a session's next statement may reach another one. "
            "LISTEN, the leader's lock and its time limits do not work.",
            DIRECT,
        )
    try:
        await context.database.check_direct_url(context.connection)
    except ConfigError as error:
        notes.problem("direct URL", f"{error}.", DIRECT)
    notes.ok("a pooler in session mode stands in between" if mode is PoolerMode.SESSION else "none in between")


async def check_listen(context: CheckContext, notes: Findings) -> None:
    """What one session notifies, another one hears."""
    if await _mode(context) is PoolerMode.TRANSACTION:
        # LISTEN would stay with whichever session the pooler chose, and with whoever gets it next.
        notes.problem(None, "Not tried: a session that is shared cannot listen.", DIRECT)
        return
    heard = await _round_trip(context)
    if heard is None:
        notes.problem(
            None,
            f"A notification did not come back within {ROUND_TRIP_S:.0f} s: workers find jobs by polling only.",
            f"Look for what stands between here and PostgreSQL. {DIRECT}",
        )
    used = await context.connection.fetchval("SELECT pg_notification_queue_usage()")
    if used > CROWDED:
        notes.problem(
            "queue",
            f"The server's queue of notifications is full to {used:.0%}; once it is, no enqueue can commit.",
            "A listening session does not read, mostly one with a transaction open: see the long transactions.",
        )
    notes.ok("" if heard is None else f"a notification took {heard * 1000:.1f} ms")


async def check_clock(context: CheckContext, notes: Findings) -> None:
    """This host's clock and the database's agree."""
    evaluate_clock(*await measure_skew(context.connection), notes)


def evaluate_clock(offset_s: float, doubt_s: float, notes: Findings) -> None:
    """What such a difference means."""
    skew_s = max(0.0, abs(offset_s) - doubt_s)
    if skew_s > SKEW_S:
        note = notes.problem if skew_s > LARGE_SKEW_S else notes.warning
        note(
            None,
            f"This host's clock is {abs(offset_s):.1f} s {'behind' if offset_s > 0 else 'ahead of'} the database's: "
            "times that programs here work out themselves (run_at, deadlines) are off by as much.",
            "Let NTP (chrony, systemd-timesyncd) run on both: `timedatectl`.",
        )
    notes.ok(f"within {max(abs(offset_s), doubt_s) * 1000:.1f} ms of the database's")


async def measure_skew(connection: Connection, clock: Callable[[], float] = time.time) -> tuple[float, float]:
    """How many seconds the database's clock is ahead of this host's, and how far that may be wrong."""
    offset_s, doubt_s = 0.0, float("inf")
    for _ in range(ASKED):
        sent = clock()
        theirs = (await connection.fetchval("SELECT clock_timestamp()")).timestamp()
        answered = clock()
        if (answered - sent) / 2 < doubt_s:
            offset_s, doubt_s = theirs - (sent + answered) / 2, (answered - sent) / 2
    return offset_s, doubt_s


async def _round_trip(context: CheckContext) -> float | None:
    """How many seconds a notification took from another session to ours; None: it did not come."""
    channel = f"awa doctor {uuid4().hex}"
    heard = asyncio.Event()

    def hear(*_: object) -> None:
        heard.set()

    other = await connect(context.database)
    try:
        await context.connection.add_listener(channel, hear)
        sent = time.monotonic()
        await other.fetchval("SELECT pg_notify($1, '')", channel)
        async with asyncio.timeout(ROUND_TRIP_S):
            await heard.wait()
        return time.monotonic() - sent
    except TimeoutError:
        return None
    finally:
        await context.connection.remove_listener(channel, hear)
        await other.close()


async def _mode(context: CheckContext) -> PoolerMode:
    """What stands between here and the sessions that workers and leaders need."""
    try:
        return await detect_pooler(context.database.direct_url or context.database.url)
    except (*CONNECTION_LOST, *CONNECTION_REFUSED) as error:
        raise DatabaseUnavailable(f"cannot connect to the database: {describe(error)}") from error
