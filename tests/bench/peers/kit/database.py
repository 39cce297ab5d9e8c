"""The measurer's own connection: it prepares, pins, polls and weighs, beside whatever the contender does."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

POLL_S = 0.005


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def settle(connection: Any, *, vacuum: bool) -> None:
    """Leaves nothing to do for the server's background processes that could fall into the measured time."""
    if vacuum:
        await connection.execute("VACUUM ANALYZE")
    await connection.execute("CHECKPOINT")


async def wal_position(connection: Any) -> int:
    return int(await connection.fetchval("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))


async def until_finished(connection: Any, unfinished: str, timeout_s: float) -> int:
    """Waits until nothing is left, and answers when that was (monotonic, ns)."""
    until = time.monotonic() + timeout_s
    while await connection.fetchval(unfinished):
        if time.monotonic() > until:
            raise TimeoutError(f"jobs are still unfinished {timeout_s:.0f} s after the last handler")
        await asyncio.sleep(POLL_S)
    return time.monotonic_ns()


@asynccontextmanager
async def pinned_snapshot(url: str) -> AsyncIterator[None]:
    """Somebody's long transaction: until it ends, vacuum may not remove what died after its snapshot."""
    async with connected(url) as connection, connection.transaction(isolation="repeatable_read"):
        await connection.fetchval("SELECT count(*) FROM pg_class")  # the snapshot is taken by the first statement
        yield
