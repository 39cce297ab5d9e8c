"""Count the pages that a transaction reads: a measure of cost that does not depend on the machine's load."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Set
from contextlib import asynccontextmanager

from awa_py.connections import Record
from awa_py.db.database import Database
from awa_py.store.session import Session
from tests.support import another_session


class PageCounts:
    """The pages of tables and indexes that a transaction has read. Other transactions are not counted."""

    def __init__(self, blocks: Mapping[str, int], whole_tables: Set[str]) -> None:
        self.blocks = {name: number for name, number in blocks.items() if number}
        self.whole_tables = whole_tables  # tables with a sequential scan

    @property
    def total(self) -> int:
        return sum(self.blocks.values())

    def of(self, table: str) -> int:
        """Return the pages of the table and its indexes, which are named after it."""
        return sum(number for name, number in self.blocks.items() if name.startswith(table))


@asynccontextmanager
async def count_pages(session: Session) -> AsyncIterator[Callable[[], Awaitable[PageCounts]]]:
    """Open a transaction and roll it back at the end. Yield a function: what was read since its last call?"""

    async def read() -> list[Record]:
        return await session.connection.fetch(
            "SELECT relname, relkind, pg_stat_get_xact_blocks_fetched(oid)::int AS blocks, "
            "pg_stat_get_xact_numscans(oid)::int AS scans FROM pg_class "
            "WHERE relnamespace = $1::text::regnamespace AND relkind IN ('r', 'i', 'S')",
            session.schema.name,
        )

    def difference(before: dict[str, tuple[int, int]], rows: list[Record]) -> PageCounts:
        """Return what was read since `before`, and update it."""
        blocks, whole = {}, set()
        for name, kind, fetched, scans in rows:
            old_fetched, old_scans = before.get(name, (0, 0))
            before[name] = (fetched, scans)
            blocks[name] = fetched - old_fetched
            if kind in ("r", b"r") and scans > old_scans:
                whole.add(name)
        return PageCounts(blocks, whole)

    transaction = session.connection.transaction()
    await transaction.start()
    try:
        before: dict[str, tuple[int, int]] = {}
        difference(before, await read())

        async def pages_read() -> PageCounts:
            return difference(before, await read())

        yield pages_read
    finally:
        await transaction.rollback()


@asynccontextmanager
async def snapshot_held(database: Database) -> AsyncIterator[None]:
    """Keep a transaction with an old snapshot open: rows that are deleted in the meantime cannot be vacuumed."""
    async with (
        another_session(database) as other,
        other.connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        await other.connection.fetch("SELECT 1")  # takes the snapshot
        yield
