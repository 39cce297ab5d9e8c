"""The database and the settings of a command."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import ExitStack, asynccontextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import typer

from awa_py.app import App
from awa_py.client import Client
from awa_py.db import migrations
from awa_py.db.database import Database
from awa_py.db.errors import translate_permission_errors
from awa_py.db.schema import Schema
from awa_py.loading import load_app
from awa_py.settings import (
    Settings,
    database_url,
    default_embedded_directory,
    direct_url,
    names_database,
    schema_name,
)
from awa_py.store.session import Session

from .output import say

T = TypeVar("T")

GC_THRESHOLD = 50_000  # new objects


class Environment:
    """The database and the settings of one command. Stops the embedded PostgreSQL if it started one."""

    def __init__(self, given: dict[str, Any], found: dict[str, Any]) -> None:
        """`given`: options of the command line. `found`: the same, plus those of the environment."""
        self._given = given
        self._found = found
        self._url: str | None = given.get("database_url")
        self._exit_stack = ExitStack()
        if self._url is not None and (given.get("embedded") or given.get("embedded_dir")):
            raise typer.BadParameter("use either --database-url or --embedded, not both")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._exit_stack.close()

    @property
    def schema(self) -> Schema:
        return Schema(schema_name(self._given.get("schema")))

    @property
    def settings(self) -> Settings:
        return Settings.from_env()

    def run(self, main: Coroutine[Any, Any, T], *, fast: bool = False) -> T:
        """Run a coroutine. `fast`: use the fastest event loop, for a process that runs long."""
        if fast:
            tune_garbage_collector()
        with asyncio.Runner(loop_factory=_fast_loop_factory() if fast else None) as runner:
            return runner.run(main)

    def load(self, spec: str | None) -> App:
        """Import the app that `module:attribute` names, or return an app without jobs."""
        return App() if spec is None else load_app(spec)

    def check(self, spec: str | None) -> None:
        """Raise if the app or the settings are invalid. Does not connect to the database."""
        app = self.load(spec)
        if not self._is_embedded and (self.names_database or not app.database.url):
            self.find_url()
        say("the configuration is valid")

    async def connect(self, app: App) -> App:
        """Set the app's database: the one of an option, else the app's own, else that of the environment."""
        own = app.database
        schema = self.schema if "schema" in self._given else own.schema
        if own.url and not self.names_database:
            app.connect_to(Database(own.url, schema, self._given.get("direct_url") or own.direct_url))
        else:
            app.connect_to(Database(self.find_url(), schema, self.find_direct_url()))
        await self._prepare(app.database)
        return app

    async def database(self) -> Database:
        """Return the database. An embedded one is migrated first."""
        database = Database(self.find_url(), self.schema, self.find_direct_url())
        await self._prepare(database)
        return database

    @asynccontextmanager
    async def session(self, role: str = "cli") -> AsyncIterator[Session]:
        """Connect, and check the version of the schema."""
        database = await self.database()
        connection = await database.connect_sessionless(role)
        try:
            with translate_permission_errors(database.schema):
                await migrations.check(connection, database.schema)
                yield Session(connection, database.schema)
        finally:
            await connection.close()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """Open a client, and check the version of the schema."""
        async with Client.open(await self.database(), self.settings) as client:
            await client.check()
            with translate_permission_errors(client.database.schema):
                yield client

    @property
    def names_database(self) -> bool:
        """Return True if an option of the command line names the database."""
        return any(self._given.get(name) for name in ("database_url", "embedded", "embedded_dir"))

    @property
    def has_database(self) -> bool:
        """Return True if an option or the environment names a database."""
        return self.names_database or self._is_embedded or names_database()

    @property
    def _is_embedded(self) -> bool:
        if self._given.get("database_url") is not None:
            return False
        return bool(self._found.get("embedded") or self._found.get("embedded_dir"))

    def find_url(self) -> str:
        """Return the database's URL, from an option or the environment. Starts the embedded server if it is used."""
        if self._url is None:
            self._url = self._start_embedded() if self._is_embedded else database_url()
        return database_url(self._url)

    def find_direct_url(self) -> str | None:
        """Return the URL that bypasses a pooler. Ignores the environment's if an option names the database."""
        given = self._given.get("direct_url")
        return given if given is None and (self.names_database or self._is_embedded) else direct_url(given)

    def _start_embedded(self) -> str:
        from awa_py.embedded import EmbeddedPostgres  # imported here because Windows lacks what it needs

        directory = self._found.get("embedded_dir") or default_embedded_directory()
        return self._exit_stack.enter_context(EmbeddedPostgres(directory)).url

    async def _prepare(self, database: Database) -> None:
        if self._is_embedded and database.url == self._url:
            await migrations.migrate(database)


@asynccontextmanager
async def checked(app: App) -> AsyncIterator[App]:
    """Open the app, which checks the connection and the version of the schema."""
    async with app:
        with translate_permission_errors(app.database.schema):
            yield app


def tune_garbage_collector() -> None:
    """Collect less often: thousands of jobs in flight, which form no cycles, would be scanned each time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, *gc.get_threshold()[1:])


def _fast_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
