"""Checks of PostgreSQL: its version, settings that matter to a queue, and free connections."""

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
WORKER_CONNECTIONS = 5
SCARCE_FRACTION = 0.1
MIN_STATEMENT_TIMEOUT = timedelta(seconds=10)
MIN_TRANSACTION_TIMEOUT = timedelta(minutes=1)

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


async def check_server(context: CheckContext, findings: Findings) -> None:
    """Check that PostgreSQL is recent enough and a primary."""
    server = await store.get_server(context.session)
    if server.version_number < OLDEST_VERSION * 10_000:
        findings.problem(
            "version",
            f"PostgreSQL is {server.version}; awa needs {OLDEST_VERSION} or newer.",
            "Upgrade PostgreSQL.",
        )
    if server.in_recovery:
        findings.problem(
            "standby",
            "This server is a standby: nothing can be enqueued, claimed or finished here.",
            "Point the URL to the primary, or list all hosts in it with target_session_attrs=primary.",
        )
    findings.ok(f"PostgreSQL {server.version}, a primary")


async def check_settings(context: CheckContext, findings: Findings) -> None:
    """Check that no setting of the server, the database or the role endangers jobs."""
    found = await store.list_server_settings(context.session, SETTINGS)
    evaluate_settings(found, context.settings, findings)
    findings.ok("no setting endangers jobs")


def evaluate_settings(settings: Mapping[str, str], awa_settings: Settings, findings: Findings) -> None:
    """Report PostgreSQL settings that endanger jobs, given awa's own settings."""
    for name in ("fsync", "full_page_writes"):
        if settings.get(name) == "off":
            findings.problem(
                name,
                f"{name} is off: a crash of the machine may lose jobs and corrupt the database.",
                f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf();",
            )
    if settings.get("synchronous_commit") == "off":
        findings.warning(
            "synchronous_commit",
            "synchronous_commit is off: a crash of the server loses the most recent enqueues.",
            "Set it to on for the server, the database and the role. awa turns it off itself for claims.",
        )
    for name in ("autovacuum", "track_counts"):
        if settings.get(name) == "off":
            findings.problem(
                name,
                f"{name} is off: tables are not vacuumed, so they grow and slow down forever.",
                f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf();",
            )
    if settings.get("default_transaction_read_only") == "on":
        findings.problem(
            "default_transaction_read_only",
            "Sessions of this role are read-only by default: nothing can be enqueued, claimed or finished.",
            "Find where it is set (server, database or role) and reset it, e.g. ALTER ROLE … RESET "
            "default_transaction_read_only;",
        )
    two_heartbeats = 2 * awa_settings.heartbeat_interval
    _report_short_timeout(
        findings, settings, "idle_session_timeout", two_heartbeats, "idle workers lose their sessions"
    )
    _report_short_timeout(
        findings, settings, "statement_timeout", MIN_STATEMENT_TIMEOUT, "large enqueues and cleanups may fail"
    )
    _report_short_timeout(
        findings,
        settings,
        "transaction_timeout",
        MIN_TRANSACTION_TIMEOUT,
        "large enqueues and ctx.transaction() may fail",
    )


async def check_connections(context: CheckContext, findings: Findings) -> None:
    """Check that another worker could connect."""
    evaluate_connections(await store.count_connections(context.session), findings)


def evaluate_connections(connections: Connections, findings: Findings) -> None:
    """Report connection limits with too few connections left."""
    usable = connections.server_limit - connections.reserved
    limits = (
        ("the server", usable, connections.server_used, "raise max_connections (this needs a restart)"),
        (
            "this database",
            connections.database_limit,
            connections.database_used,
            "raise the limit with ALTER DATABASE … CONNECTION LIMIT",
        ),
        (
            "this role",
            connections.role_limit,
            connections.role_used,
            "raise the limit with ALTER ROLE … CONNECTION LIMIT",
        ),
    )
    for scope, limit, used, remedy in limits:
        left = max(0, limit - used)
        if limit < 0 or (left >= WORKER_CONNECTIONS and left >= SCARCE_FRACTION * limit):
            continue
        report: Callable[[str, str, str], None] = findings.warning if left >= WORKER_CONNECTIONS else findings.problem
        report(
            scope,
            f"{count(left, 'connection')} of {limit} left for {scope}; a worker needs {WORKER_CONNECTIONS}.",
            "Close unused connections (SELECT application_name, count(*) FROM pg_stat_activity GROUP BY 1), put the "
            f"application's connections behind a pooler, or {remedy}.",
        )
    findings.ok(f"{max(0, usable - connections.server_used)} of {usable} left")


def _report_short_timeout(
    findings: Findings, settings: Mapping[str, str], name: str, minimum: timedelta, effect: str
) -> None:
    """Report a timeout of PostgreSQL that is too short; 0 means no limit."""
    limit = timedelta(milliseconds=int(settings.get(name, "0")))
    if timedelta(0) < limit < minimum:
        findings.warning(
            name,
            f"{name} is {durations.text(limit)} for this role: {effect}.",
            f"ALTER ROLE … SET {name} = 0; or at least {durations.text(minimum)}.",
        )
