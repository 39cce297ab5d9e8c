"""The client of an app. Nested and concurrent `async with app:` share it: the first opens it, the last closes it."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from awa_py.client import Client, not_open
from awa_py.db.database import Database
from awa_py.db.migrations import migrate
from awa_py.db.schema import Schema
from awa_py.errors import ConfigError
from awa_py.settings import Settings, database_url, direct_url, embedded_directory


class SharedClient:
    """Opens and closes the client, and the embedded PostgreSQL if the environment names one."""

    def __init__(self, url: str | None, direct_url: str | None, schema: Schema) -> None:
        """`url` and `direct_url` default to those of the environment, which is read when they are needed."""
        self._url = url
        self._direct_url = direct_url
        self.database = Database(url or "", schema, direct_url)
        self._client: Client | None = None
        self._resources = AsyncExitStack()
        self._users = 0
        self._opening = asyncio.Lock()

    @property
    def client(self) -> Client:
        if self._client is None:
            raise not_open()
        return self._client

    def connect_to(self, database: Database) -> None:
        """Use this database instead of the one that was given before."""
        self.database = database
        self._url, self._direct_url = database.url, database.direct_url

    def find_database(self) -> Database:
        """Return the database. It is found only now: an app can be imported where none is configured."""
        if self._client is None:
            if not self._url and embedded_directory():
                raise ConfigError("the embedded PostgreSQL runs while the app is open: use `async with app:`")
            direct = self._direct_url if self._url else direct_url(self._direct_url)
            found = Database(database_url(self._url), self.database.schema, direct)
            if found != self.database:  # an equal one knows the servers already
                self.database = found
        return self.database

    async def open(self, settings: Settings, *, check: bool) -> None:
        """Open the client unless it is open. With `check`, raise an error if the database cannot be used."""
        if self._users == 0:
            self._opening = asyncio.Lock()  # a new one: the app may be opened again in another event loop
        self._users += 1
        try:
            async with self._opening:
                if self._client is None:
                    await self._open(settings, check=check)
        except BaseException:
            self._users -= 1
            raise

    async def close(self) -> None:
        """Close the client if this was its last user."""
        self._users -= 1
        if self._users == 0:
            resources, self._resources = self._resources, AsyncExitStack()
            self._client = None
            await resources.aclose()

    async def _open(self, settings: Settings, *, check: bool) -> None:
        async with AsyncExitStack() as resources:
            directory = None if self._url else embedded_directory()
            if directory is None:
                self.find_database()
            else:
                await self._start_embedded(directory, resources)
            client = await resources.enter_async_context(Client.open(self.database, settings))
            if check:
                await client.check()
            self._client, self._resources = client, resources.pop_all()

    async def _start_embedded(self, directory: Path, resources: AsyncExitStack) -> None:
        """Start the embedded PostgreSQL, or use the running one, until the client is closed."""
        from awa_py.embedded import EmbeddedPostgres  # imported here because Windows lacks what it needs

        # This blocks the event loop for a moment, which is good enough for development.
        server = resources.enter_context(EmbeddedPostgres(directory))
        self.database = Database(server.url, self.database.schema)
        await migrate(self.database)
