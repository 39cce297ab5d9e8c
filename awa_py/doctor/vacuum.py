"""Checks of vacuum: open transactions that block it, and tables that it does not keep up with."""

from collections.abc import Iterable
from datetime import timedelta

from awa_py.db.schema import Schema
from awa_py.doctor.context import CheckContext
from awa_py.doctor.finding import Findings
from awa_py.store import server as store
from awa_py.store.server import OpenTransaction, ReplicationSlot, TableHealth
from awa_py.text import count, short_duration

MAX_LISTED = 20
NOTICE_DIVISOR = 30  # an idle transaction is worth a notice at this fraction of the limit
PROBLEM_FACTOR = 12  # an active transaction is a problem at this multiple of the limit
MAX_SLOT_LAG = 1_000_000  # transactions

DEAD_ROWS = 10_000
MANY_DEAD_ROWS = 1_000_000
OVERDUE_FACTOR = 10  # times autovacuum's threshold of dead rows …
OVERDUE_S = 600.0  # … and no vacuum for this long
LARGE_BYTES = 256 * 1024**2
BYTES_PER_ROW = 4096
MEBIBYTE = 1024**2


async def check_transactions(context: CheckContext, findings: Findings) -> None:
    """Check for long transactions: while one is open, deleted rows stay and everything slows down."""
    limit = context.long_transaction
    for transaction in await store.list_old_transactions(
        context.session, older_than=limit / NOTICE_DIVISOR, limit=MAX_LISTED
    ):
        _report_transaction(findings, transaction, limit)
    for prepared in await store.list_prepared_transactions(context.session, older_than=limit):
        findings.problem(
            f"prepared transaction {prepared.gid}",
            f"{prepared.role} prepared it {short_duration(timedelta(seconds=prepared.open_s))} ago; it is still open.",
            f"COMMIT PREPARED '{prepared.gid}'; or ROLLBACK PREPARED '{prepared.gid}';",
        )
    evaluate_slots(await store.list_replication_slots(context.session), findings)
    server = await store.get_server(context.session)
    if not server.sees_all:
        findings.notice(
            None,
            f'The role "{server.role}" may not see the sessions of other roles, so their transactions are not checked.',
            f'GRANT pg_read_all_stats TO "{server.role}";',
        )
    findings.ok(f"none is older than {short_duration(limit)}")


def evaluate_slots(slots: Iterable[ReplicationSlot], findings: Findings) -> None:
    """Report unused replication slots, and those whose standby is far behind."""
    for slot in slots:
        about = f"replication slot {slot.name}"
        effect = f"It prevents vacuum of the rows of the last {count(slot.transactions, 'transaction')}"
        if not slot.active:
            findings.problem(
                about, f"{effect}, and it is not in use.", f"SELECT pg_drop_replication_slot('{slot.name}');"
            )
        elif slot.transactions > MAX_SLOT_LAG:
            findings.warning(about, f"{effect}: a long query runs on its standby.", "End that query.")


async def check_tables(context: CheckContext, findings: Findings) -> None:
    """Check that the tables are vacuumed and not bloated."""
    evaluate_tables(await store.list_table_health(context.session), context.database.schema, findings)
    findings.ok("vacuum keeps up with every table")


def evaluate_tables(tables: Iterable[TableHealth], schema: Schema, findings: Findings) -> None:
    """Report tables that vacuum does not keep up with, and bloated ones."""
    for table in tables:
        about, full_name = f"table {table.name}", schema.qualify(f"awa.{table.name}")
        if not table.autovacuum:
            findings.problem(
                about,
                "Its autovacuum is switched off: it grows and slows down forever.",
                f"ALTER TABLE {full_name} RESET (autovacuum_enabled);",
            )
        if _is_overdue(table):
            report = findings.problem if table.dead > MANY_DEAD_ROWS else findings.warning
            since = (
                "never"
                if table.since_vacuum_s is None
                else f"{short_duration(timedelta(seconds=table.since_vacuum_s))} ago"
            )
            report(
                about,
                f"{count(table.dead, 'dead row')} and {table.live:,} live ones; last vacuum: {since}.",
                f"VACUUM {full_name}; then check that autovacuum runs and no transaction is open for long.",
            )
        if table.counted and table.bytes > max(LARGE_BYTES, BYTES_PER_ROW * table.live):
            _report_size(findings, table, full_name)
        if table.counted and table.index_bytes > max(LARGE_BYTES, BYTES_PER_ROW * table.live):
            findings.warning(
                about,
                f"Its indexes take {table.index_bytes // MEBIBYTE:,} MiB for {count(table.live, 'row')}.",
                f"REINDEX TABLE CONCURRENTLY {full_name};",
            )


def _report_size(findings: Findings, table: TableHealth, full_name: str) -> None:
    size = f"{table.bytes // MEBIBYTE:,} MiB for {count(table.live, 'row')}"
    if table.truncated:
        findings.warning(
            f"table {table.name}",
            f"It takes {size}.",
            f"VACUUM FULL {full_name}; at a quiet time: it locks the table.",
        )
        return
    # Shrinking a table needs an exclusive lock, which autovacuum must not take on a table that all claims use.
    findings.warning(
        f"table {table.name}",
        f"It takes {size}: it grew while jobs waited or a transaction was open for long, and autovacuum never shrinks "
        "it. The space is used again.",
        f"VACUUM (TRUNCATE) {full_name}; it locks the table for a moment. Without the lock, nothing changes: "
        "repeat it when no long transaction is open and few jobs run.",
    )


def _is_overdue(table: TableHealth) -> bool:
    """Return whether it has far more dead rows than autovacuum's threshold, and no recent vacuum."""
    many = table.dead > max(DEAD_ROWS, OVERDUE_FACTOR * table.vacuum_threshold)
    return many and (table.since_vacuum_s is None or table.since_vacuum_s > OVERDUE_S)


def _report_transaction(findings: Findings, transaction: OpenTransaction, limit: timedelta) -> None:
    open_for = timedelta(seconds=transaction.open_s)
    if transaction.idle:
        report = findings.problem if open_for >= limit else findings.notice
    elif open_for >= limit:
        report = findings.problem if open_for >= PROBLEM_FACTOR * limit else findings.warning
    else:
        return  # active, and not for long yet
    who = f"{transaction.role} from {transaction.client}" + (
        f' ("{transaction.application}")' if transaction.application else ""
    )
    state = "idle in a transaction" if transaction.idle else "active in a transaction"
    effect = "rows deleted since then cannot be vacuumed" if transaction.blocks_vacuum else "it keeps its locks"
    report(
        f"session {transaction.pid}",
        f"{who} has been {state} for {short_duration(open_for)}: {effect}.",
        f"SELECT pg_terminate_backend({transaction.pid}); it rolls back. To prevent this, set "
        "idle_in_transaction_session_timeout.",
    )
