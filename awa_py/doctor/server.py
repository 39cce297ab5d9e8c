"""PostgreSQL: its version, the settings that matter to a queue, and the connections that are left."""

from collections.abc import Callable, Mapping
from datetime import timedelta

from awa_py import durations
from awa_py.doctor.context import CheckContext
from awa_py.doctor.finding import Findings
from awa_py.settings import Settings
from awa_py.store import server as store
from awa_py.store.server import Connections
from awa_py.text import count

OLDEST_VERSION = 14
CONNECTIONS_OF_A_WORKER = 5
SCARCE = 0.1
SHORT_STATEMENT = timedelta(seconds=10)
SHORT_TRANSACTION = timedelta(minutes=1)

SETTINGS = (
    "autovacuum",
    "default_transaction_read_only",
    "fsync",
    "full_page_writes",
    "idle_session_timeout",
    "statement_timeout",
    "synchronous_commit",
    "track_counts",
    "transaction_timeout",
)


async def check_server(context: CheckContext, notes: Findings) -> None:
    """PostgreSQL is new enough, and a primary."""
    server = await store.get_server(context.session)
    if server.version_number < OLDEST_VERSION * 10_000:
        notes.problem(
            "version",
            f"PostgreSQL is {server.version}; awa needs {OLDEST_VERSION} or newer.",
            "Upgrade PostgreSQL.",
        )
    if server.in_recovery:
        notes.problem(
            "standby",
            "This server is a standby: nothing can be enqueued, claimed or finished here.",
            "Point the URL to the primary; or name all hosts in it, with target_session_attrs=primary.",
        )
    notes.ok(f"PostgreSQL {server.version}, a primary")


async def check_settings(context: CheckContext, notes: Findings) -> None:
    """No setting of the server, the database or the role endangers jobs."""
    found = await store.list_server_settings(context.session, SETTINGS)
    evaluate_settings(found, context.settings, notes)
    notes.ok("nothing that endangers jobs")


def evaluate_settings(settings: Mapping[str, str], ours: Settings, notes: Findings) -> None:
    """What PostgreSQL's settings mean for a queue with these of its own."""
    for name in ("fsync", "full_page_writes"):
        if settings.get(name) == "off":
            notes.problem(
                name,
                f"{name} is off: when the machine crashes, jobs may be lost and the database corrupt.",
                f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf();",
            )
    if settings.get("synchronous_commit") == "off":
        notes.warning(
            "synchronous_commit",
            "synchronous_commit is off: when the server crashes, the last moments' enqueues are lost.",
            "Set it to on for the server, the database and the role. Claims do without it by themselves.",
        )
    for name in ("autovacuum", "track_counts"):
        if settings.get(name) == "off":
            notes.problem(
                name,
                f"{name} is off: nobody vacuums. Tables that jobs pass through grow and slow down without end.",
                f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf();",
            )
    if settings.get("default_transaction_read_only") == "on":
        notes.problem(
            "default_transaction_read_only",
            "Sessions of this role begin read-only: nothing can be enqueued, claimed or finished.",
            "Find where it is set (server, database or role), and reset it: ALTER ROLE … RESET "
            "default_transaction_read_only;",
        )
    beat = 2 * ours.heartbeat_interval
    _note_short(notes, settings, "idle_session_timeout", beat, "workers' sessions are ended while they wait")
    _note_short(notes, settings, "statement_timeout", SHORT_STATEMENT, "large enqueues and cleanups may fail")
    _note_short(
        notes, settings, "transaction_timeout", SHORT_TRANSACTION, "large enqueues and ctx.transaction() may fail"
    )


async def check_connections(context: CheckContext, notes: Findings) -> None:
    """There is room for another worker."""
    evaluate_connections(await store.count_connections(context.session), notes)


def evaluate_connections(connections: Connections, notes: Findings) -> None:
    """What is left of each limit."""
    usable = connections.server_limit - connections.reserved
    limits = (
        ("the server", usable, connections.server_used, "raise max_connections (it takes a restart)"),
        ("this database", connections.database_limit, connections.database_used, "ALTER DATABASE … CONNECTION LIMIT"),
        ("this role", connections.role_limit, connections.role_used, "ALTER ROLE … CONNECTION LIMIT"),
    )
    for whose, limit, used, how in limits:
        left = max(0, limit - used)
        if limit < 0 or (left >= CONNECTIONS_OF_A_WORKER and left >= SCARCE * limit):
            continue
        note: Callable[[str, str, str], None] = notes.warning if left >= CONNECTIONS_OF_A_WORKER else notes.problem
        note(
            whose,
            f"{count(left, 'connection')} of {limit} left for {whose}; a worker takes {CONNECTIONS_OF_A_WORKER}.",
            "End what nobody needs (SELECT application_name, count(*) FROM pg_stat_activity GROUP BY 1), put the "
            f"application's connections behind a pooler, or {how}.",
        )
    notes.ok(f"{max(0, usable - connections.server_used)} of {usable} left")


def _note_short(notes: Findings, settings: Mapping[str, str], name: str, least: timedelta, what: str) -> None:
    """A time limit of PostgreSQL's that is too short; 0 is none."""
    limit = timedelta(milliseconds=int(settings.get(name, "0")))
    if timedelta(0) < limit < least:
        notes.warning(
            name,
            f"{name} is {durations.text(limit)} for this role: {what}.",
            f"ALTER ROLE … SET {name} = 0; or {durations.text(least)} and more.",
        )
