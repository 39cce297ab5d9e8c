"""What ended in each minute: rolled up by the leader, read by people."""

from datetime import datetime, timedelta

from awa_py.store.session import Session


async def get_rollup_span(
    session: Session, *, again: int, at_most: timedelta, done: datetime | None
) -> tuple[datetime, datetime]:
    """The first and the last minute that are to be rolled up. `done`: the last that was; None: whatever is there."""
    row = await session.fetchrow("get_rollup_span", again, at_most, done)
    assert row is not None
    return row["first"], row["last"]


async def roll_up_minutes(session: Session, first: datetime, until: datetime) -> int:
    """Counts what ended from one minute on, and before another. How many buckets that changed."""
    async with session.connection.transaction():
        # A BRIN index can be read in no other way, and the leader's session has this switched off.
        await session.connection.execute("SET LOCAL enable_bitmapscan = on")
        return int(await session.fetchval("roll_up_minutes", first, until))


async def delete_old_buckets(session: Session, *, retention: timedelta, limit: int) -> int:
    return int(await session.fetchval("delete_old_buckets", retention, limit))
