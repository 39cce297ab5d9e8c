"""What keeps tables small: short transactions, and a vacuum that comes."""

from collections.abc import Iterable
from datetime import timedelta

from awa_py.db.schema import Schema
from awa_py.doctor.context import CheckContext
from awa_py.doctor.finding import Findings
from awa_py.store import server as store
from awa_py.store.server import OpenTransaction, ReplicationSlot, TableHealth
from awa_py.text import count, short_duration

SHOWN = 20
YOUNG = 30  # times younger than a long one: idle, that is worth a notice already
VERY_LONG = 12  # times a long one
SLOT_LAG = 1_000_000  # transactions

DEAD_ROWS = 10_000
MANY_DEAD_ROWS = 1_000_000
OVERDUE = 10  # times as many dead rows as autovacuum waits for …
OVERDUE_S = 600.0  # … and it did not come for that long
LARGE_BYTES = 256 * 1024**2
BYTES_A_ROW = 4096
MEBIBYTE = 1024**2


async def check_transactions(context: CheckContext, notes: Findings) -> None:
    """Nobody holds a transaction open for long: what is deleted meanwhile stays, and everything slows down."""
    limit = context.long_transaction
    for transaction in await store.list_old_transactions(context.session, older_than=limit / YOUNG, limit=SHOWN):
        _note_transaction(notes, transaction, limit)
    for prepared in await store.list_prepared_transactions(context.session, older_than=limit):
        notes.problem(
            f"prepared transaction {prepared.gid}",
            f"{prepared.role} prepared it {short_duration(timedelta(seconds=prepared.open_s))} ago; it is still open.",
            f"COMMIT PREPARED '{prepared.gid}'; or ROLLBACK PREPARED '{prepared.gid}';",
        )
    evaluate_slots(await store.list_replication_slots(context.session), notes)
    server = await store.get_server(context.session)
    if not server.sees_all:
        notes.notice(
            None,
            f'The role "{server.role}" may not see what other roles\' sessions do: their transactions are not shown.',
            f'GRANT pg_read_all_stats TO "{server.role}";',
        )
    notes.ok(f"none is older than {short_duration(limit)}")


def evaluate_slots(slots: Iterable[ReplicationSlot], notes: Findings) -> None:
    """Slots that nobody uses, and those whose standby is far behind."""
    for slot in slots:
        about = f"replication slot {slot.name}"
        says = f"It keeps the rows of the last {count(slot.transactions, 'transaction')} from being vacuumed"
        if not slot.active:
            notes.problem(about, f"{says}, and nobody uses it.", f"SELECT pg_drop_replication_slot('{slot.name}');")
        elif slot.transactions > SLOT_LAG:
            notes.warning(about, f"{says}: a query runs for long on its standby.", "End that query.")


async def check_tables(context: CheckContext, notes: Findings) -> None:
    """Vacuum comes to the tables, and they are as large as their rows."""
    evaluate_tables(await store.list_table_health(context.session), context.database.schema, notes)
    notes.ok("vacuum keeps up with every table")


def evaluate_tables(tables: Iterable[TableHealth], schema: Schema, notes: Findings) -> None:
    """What is the matter with each."""
    for table in tables:
        about, full_name = f"table {table.name}", schema.qualify(f"awa.{table.name}")
        if not table.autovacuum:
            notes.problem(
                about,
                "Its autovacuum is switched off: it grows and slows down without end.",
                f"ALTER TABLE {full_name} RESET (autovacuum_enabled);",
            )
        if _is_neglected(table):
            note = notes.problem if table.dead > MANY_DEAD_ROWS else notes.warning
            since = (
                "never"
                if table.since_vacuum_s is None
                else f"{short_duration(timedelta(seconds=table.since_vacuum_s))} ago"
            )
            note(
                about,
                f"{count(table.dead, 'dead row')} beside {table.live:,} live ones; it was vacuumed {since}.",
                f"VACUUM {full_name}; and see that autovacuum runs, and that no transaction is open for long.",
            )
        if table.counted and table.bytes > max(LARGE_BYTES, BYTES_A_ROW * table.live):
            notes.warning(
                about,
                f"It takes {table.bytes // MEBIBYTE:,} MiB for {count(table.live, 'row')}.",
                f"VACUUM FULL {full_name}; in a quiet minute: nobody can use the table meanwhile.",
            )
        if table.counted and table.index_bytes > max(LARGE_BYTES, BYTES_A_ROW * table.live):
            notes.warning(
                about,
                f"Its indexes take {table.index_bytes // MEBIBYTE:,} MiB for {count(table.live, 'row')}.",
                f"REINDEX TABLE CONCURRENTLY {full_name};",
            )


def _is_neglected(table: TableHealth) -> bool:
    """Far more dead rows than autovacuum waits for, and it has not just been here."""
    many = table.dead > max(DEAD_ROWS, OVERDUE * table.vacuum_threshold)
    return many and (table.since_vacuum_s is None or table.since_vacuum_s > OVERDUE_S)


def _note_transaction(notes: Findings, transaction: OpenTransaction, limit: timedelta) -> None:
    open_for = timedelta(seconds=transaction.open_s)
    if transaction.idle:
        note = notes.problem if open_for >= limit else notes.notice
    elif open_for >= limit:
        note = notes.problem if open_for >= VERY_LONG * limit else notes.warning
    else:
        return  # it works, and not for long yet
    who = f"{transaction.role} from {transaction.client}" + (
        f' ("{transaction.application}")' if transaction.application else ""
    )
    does = "idle in its transaction" if transaction.idle else "at work in its transaction"
    harm = "nothing that was deleted since can be vacuumed" if transaction.blocks_vacuum else "it keeps its locks"
    note(
        f"session {transaction.pid}",
        f"{who} is {does}, for {short_duration(open_for)} now: {harm}.",
        f"SELECT pg_terminate_backend({transaction.pid}); it rolls back. Against the next one: "
        "idle_in_transaction_session_timeout.",
    )
