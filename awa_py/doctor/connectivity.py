"""Checks of the connection: poolers, notifications and clocks."""

import asyncio
import time
from collections.abc import Callable
from uuid import uuid4

from awa_py.connections import Connection
from awa_py.db.errors import CONNECTION_LOST, CONNECTION_REFUSED, cannot_connect
from awa_py.db.pooler import PoolerMode, detect_pooler
from awa_py.doctor.context import CheckContext, connect
from awa_py.doctor.finding import Findings
from awa_py.errors import ConfigError

ROUND_TRIP_S = 5.0
CLOCK_SAMPLES = 3
SKEW_S = 1.0
LARGE_SKEW_S = 60.0
NOTIFICATION_QUEUE_USAGE = 0.1
SET_DIRECT_URL = "Set AWA_DIRECT_URL (--direct-url) to a URL of this database that bypasses the pooler."


async def check_pooler(context: CheckContext, findings: Findings) -> None:
    """Check that session state (settings, locks, LISTEN) stays with the session."""
    mode = await _pooling(context)
    if mode is PoolerMode.TRANSACTION:
        findings.problem(
            "transaction mode",
            "The connection goes through a pooler in transaction mode: each transaction may use another session. "
            "LISTEN, the leader's lock and session timeouts do not work.",
            SET_DIRECT_URL,
        )
    try:
        await context.database.check_direct_url(context.connection)
    except ConfigError as error:
        findings.problem("direct URL", f"{error}.", SET_DIRECT_URL)
    findings.ok("a pooler in session mode" if mode is PoolerMode.SESSION else "no pooler")


async def check_listen(context: CheckContext, findings: Findings) -> None:
    """Check that a notification from one session reaches another."""
    if await _pooling(context) is PoolerMode.TRANSACTION:
        # LISTEN would remain on a session that the pooler gives to another client next.
        findings.problem(
            None, "Not checked: LISTEN does not work through a pooler in transaction mode.", SET_DIRECT_URL
        )
        return
    round_trip_s = await _round_trip(context)
    if round_trip_s is None:
        findings.problem(
            None,
            f"A notification did not arrive within {ROUND_TRIP_S:.0f} s: workers find jobs only by polling.",
            f"Check for a pooler or proxy between this host and PostgreSQL. {SET_DIRECT_URL}",
        )
    used = await context.connection.fetchval("SELECT pg_catalog.pg_notification_queue_usage()")
    if used > NOTIFICATION_QUEUE_USAGE:
        findings.problem(
            "queue",
            f"The server's notification queue is {used:.0%} full. When it is full, no enqueue can commit.",
            "A listening session does not read it, usually because of an open transaction: see check `transactions`.",
        )
    findings.ok("" if round_trip_s is None else f"a notification took {round_trip_s * 1000:.1f} ms")


async def check_clock(context: CheckContext, findings: Findings) -> None:
    """Check that this host's clock agrees with the database's."""
    evaluate_clock(*await measure_skew(context.connection), findings)


def evaluate_clock(offset_s: float, uncertainty_s: float, findings: Findings) -> None:
    """Report a clock offset that exceeds the measurement's uncertainty."""
    skew_s = max(0.0, abs(offset_s) - uncertainty_s)
    if skew_s > SKEW_S:
        report = findings.problem if skew_s > LARGE_SKEW_S else findings.warning
        report(
            None,
            f"This host's clock is {abs(offset_s):.1f} s {'behind' if offset_s > 0 else 'ahead of'} the database's: "
            "times that programs on this host compute (run_at, deadlines) are wrong by as much.",
            "Run NTP (chrony, systemd-timesyncd) on both hosts; `timedatectl` shows its state.",
        )
    findings.ok(f"within {max(abs(offset_s), uncertainty_s) * 1000:.1f} ms of the database's")


async def measure_skew(connection: Connection, clock: Callable[[], float] = time.time) -> tuple[float, float]:
    """Return by how many seconds the database's clock is ahead of this host's, and the uncertainty."""
    offset_s, uncertainty_s = 0.0, float("inf")
    for _ in range(CLOCK_SAMPLES):
        sent = clock()
        server_time = (await connection.fetchval("SELECT pg_catalog.clock_timestamp()")).timestamp()
        answered = clock()
        if (answered - sent) / 2 < uncertainty_s:
            offset_s, uncertainty_s = server_time - (sent + answered) / 2, (answered - sent) / 2
    return offset_s, uncertainty_s


async def _round_trip(context: CheckContext) -> float | None:
    """Return how many seconds a notification took from another session to ours; None if it did not arrive."""
    channel = f"awa doctor {uuid4().hex}"
    received = asyncio.Event()

    def on_notify(*_: object) -> None:
        received.set()

    other = await connect(context.database)
    try:
        await context.connection.add_listener(channel, on_notify)
        sent = time.monotonic()
        await other.fetchval("SELECT pg_catalog.pg_notify($1, '')", channel)
        async with asyncio.timeout(ROUND_TRIP_S):
            await received.wait()
        return time.monotonic() - sent
    except TimeoutError:
        return None
    finally:
        await context.connection.remove_listener(channel, on_notify)
        await other.close()


async def _pooling(context: CheckContext) -> PoolerMode:
    """Detect the pooler on the URL that workers and leaders use for their sessions."""
    try:
        return await detect_pooler(context.database.servers)
    except (*CONNECTION_LOST, *CONNECTION_REFUSED) as error:
        raise cannot_connect(error) from error
