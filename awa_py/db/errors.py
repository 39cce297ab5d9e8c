"""Which database errors mean that a connection is lost or refused, and the errors of awa that report it."""

from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg

from awa_py.db.schema import Schema
from awa_py.errors import DatabaseMissing, DatabaseUnavailable, LoginRefused, NotPermitted, StaleServer
from awa_py.text import describe

# The session is gone or useless (e.g. on a demoted primary). A new one may work.
CONNECTION_LOST = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.IdleSessionTimeoutError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    StaleServer,
)
# A statement met a value that it cannot work with: in a row, which the statement meets again each time. The last one is
# asyncpg's error for a time outside of Python's calendar.
INVALID_DATA = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError, OverflowError)
# The server rejected the login. A retry gets the same answer until the configuration changes.
CONNECTION_REFUSED = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.ClientConfigurationError,
)


def cannot_connect(error: Exception) -> DatabaseUnavailable:
    """Build the error for a connection that could not be opened."""
    sentence = f"cannot connect to the database: {describe(error)}"
    if isinstance(error, StaleServer):
        return StaleServer(sentence)
    if isinstance(error, asyncpg.InvalidCatalogNameError):
        return DatabaseMissing(sentence)
    if isinstance(error, (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InsufficientPrivilegeError)):
        return LoginRefused(sentence)
    return DatabaseUnavailable(sentence)


@contextmanager
def translate_permission_errors(schema: Schema) -> Iterator[None]:
    """Turn PostgreSQL's "permission denied" into a NotPermitted that names the role to grant."""
    try:
        yield
    except asyncpg.InsufficientPrivilegeError as error:
        raise not_permitted(error, schema) from error


def not_permitted(error: asyncpg.InsufficientPrivilegeError, schema: Schema) -> NotPermitted:
    """Build the NotPermitted for a "permission denied" of PostgreSQL."""
    name = schema.name
    return NotPermitted(
        f'{describe(error)}: the login needs the role "{name}_reader" to read, "{name}_producer" to enqueue, '
        f'"{name}_worker" to run jobs or to make changes (GRANT it; `awa migrate --roles` creates the roles)'
    )
