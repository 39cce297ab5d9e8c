"""A schema with its roles, and logins that are members of them.

Roles belong to the whole server, so each test's roles have their own names, and are dropped after it.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

from awa_py.db.database import Database
from awa_py.db.roles import role_names
from awa_py.db.schema import Schema
from tests.support import another_session

PASSWORD = "secret"


def with_user(url: str, user: str, password: str = PASSWORD) -> str:
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{user}:{password}@{host}"))


class Installation:
    """A database with a schema of a random name, used as its administrator."""

    def __init__(self, url: str) -> None:
        self.database = Database(url, Schema(f"r{uuid4().hex[:12]}"))
        self._logins: list[str] = []

    @property
    def name(self) -> str:
        return self.database.schema.name

    async def execute(self, sql: str) -> None:
        """Run SQL as the administrator."""
        async with another_session(self.database) as session:
            await session.connection.execute(sql)

    async def login(self, *roles: str, options: str = "") -> Database:
        """Create a login that is a member of the given roles. Return the database with that login."""
        login = f"{self.name}_{'_'.join(roles) or 'stranger'}_{len(self._logins)}"
        self._logins.append(login)
        await self.execute(f"CREATE ROLE {login} LOGIN PASSWORD '{PASSWORD}' {options}")
        for role in roles:
            await self.execute(f"GRANT {self.name}_{role} TO {login}")
        return Database(with_user(self.database.url, login), self.database.schema)

    async def clear(self) -> None:
        """Drop the logins and roles."""
        for role in (*self._logins, *role_names(self.database.schema)):
            async with another_session(self.database) as session:
                if await session.connection.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", role):
                    await session.connection.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


@asynccontextmanager
async def installation(url: str) -> AsyncIterator[Installation]:
    """Yield a database without a schema and without roles."""
    installed = Installation(url)
    try:
        yield installed
    finally:
        await installed.clear()
