"""Helpers for the benchmark's own connection, which is separate from the contender's."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

POLL_INTERVAL_S = 0.005


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def settle(connection: Any, *, vacuum: bool) -> None:
    """Vacuum and checkpoint now, so that background processes do not do it during the measurement."""
    if vacuum:
        await connection.execute("VACUUM ANALYZE")
    await connection.execute("CHECKPOINT")


async def wal_position(connection: Any) -> int:
    return int(await connection.fetchval("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))


async def wait_until_finished(connection: Any, unfinished: str, timeout_s: float) -> int:
    """Wait until all jobs are finished, and return the time (monotonic, ns)."""
    deadline = time.monotonic() + timeout_s
    while await connection.fetchval(unfinished):
        if time.monotonic() > deadline:
            raise TimeoutError(f"jobs are still unfinished {timeout_s:.0f} s after the last handler")
        await asyncio.sleep(POLL_INTERVAL_S)
    return time.monotonic_ns()


@asynccontextmanager
async def pinned_snapshot(url: str) -> AsyncIterator[None]:
    """Hold a long transaction open: until it ends, vacuum cannot remove rows that died after its snapshot."""
    async with connected(url) as connection, connection.transaction(isolation="repeatable_read"):
        await connection.fetchval("SELECT count(*) FROM pg_class")  # the first statement takes the snapshot
        yield
