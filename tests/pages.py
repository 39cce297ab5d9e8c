"""What a transaction reads, in pages: a measure of cost that no busy machine can change."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Set
from contextlib import asynccontextmanager

from awa_py.db.database import Database
from awa_py.db.types import Record
from awa_py.store.session import Session
from tests.support import another_session


class Touched:
    """What a transaction has asked the tables and indexes for so far; others' work is not in it."""

    def __init__(self, blocks: Mapping[str, int], whole_tables: Set[str]) -> None:
        self.blocks = {name: number for name, number in blocks.items() if number}
        self.whole_tables = whole_tables  # that were read from end to end

    @property
    def total(self) -> int:
        return sum(self.blocks.values())

    def of(self, table: str) -> int:
        """Of the table and its indexes, which are named after it."""
        return sum(number for name, number in self.blocks.items() if name.startswith(table))


@asynccontextmanager
async def undone(session: Session) -> AsyncIterator[Callable[[], Awaitable[Touched]]]:
    """A transaction that is rolled back, and a function that says what it has touched since the last question."""

    async def read() -> list[Record]:
        return await session.connection.fetch(
            "SELECT relname, relkind, pg_stat_get_xact_blocks_fetched(oid)::int AS blocks, "
            "pg_stat_get_xact_numscans(oid)::int AS scans FROM pg_class "
            "WHERE relnamespace = $1::text::regnamespace AND relkind IN ('r', 'i', 'S')",
            session.schema.name,
        )

    def ask_after(before: dict[str, tuple[int, int]], rows: list[Record]) -> Touched:
        blocks, whole = {}, set()
        for name, kind, fetched, scans in rows:
            old_fetched, old_scans = before.get(name, (0, 0))
            before[name] = (fetched, scans)
            blocks[name] = fetched - old_fetched
            if kind in ("r", b"r") and scans > old_scans:
                whole.add(name)
        return Touched(blocks, whole)

    transaction = session.connection.transaction()
    await transaction.start()
    try:
        seen: dict[str, tuple[int, int]] = {}
        ask_after(seen, await read())

        async def touched() -> Touched:
            return ask_after(seen, await read())

        yield touched
    finally:
        await transaction.rollback()


@asynccontextmanager
async def snapshot_held(database: Database) -> AsyncIterator[None]:
    """Somebody forgot a transaction: what is deleted meanwhile cannot be vacuumed."""
    async with (
        another_session(database) as other,
        other.connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        await other.connection.fetch("SELECT 1")  # now it has its snapshot
        yield
