"""What goes with every command: the database that it is about, and how it logs."""

import asyncio
import gc
import inspect
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import ExitStack, asynccontextmanager
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Self, TypeVar

import typer
from rich.markup import escape

from awa_py.app import App
from awa_py.client import Client
from awa_py.db import migrations
from awa_py.db.database import Database
from awa_py.db.errors import CONNECTION_LOST, CONNECTION_REFUSED, translate_permission_errors
from awa_py.db.schema import Schema
from awa_py.errors import DatabaseUnavailable
from awa_py.loading import load_app
from awa_py.settings import Settings, database_url, direct_url, schema_name
from awa_py.store.session import Session
from awa_py.text import describe

from . import logs
from .errors import report_errors
from .logs import LogFormat, LogLevel
from .output import say

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

PANEL = "Connection and logging"
COLLECT_EVERY = 50_000  # objects


def _common(
    database_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar=["AWA_DATABASE_URL", "DATABASE_URL"],
            help="postgresql://user:password@host/db",
            rich_help_panel=PANEL,
        ),
    ] = None,
    direct_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="AWA_DIRECT_URL",
            help="The same database without PgBouncer, where that stands in between.",
            rich_help_panel=PANEL,
        ),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(metavar="NAME", envvar="AWA_SCHEMA", help="The schema, if not awa.", rich_help_panel=PANEL),
    ] = None,
    embedded: Annotated[
        bool,
        typer.Option("--embedded", envvar="AWA_EMBEDDED", help="Use a PostgreSQL of awa's own.", rich_help_panel=PANEL),
    ] = False,
    embedded_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", envvar="AWA_EMBEDDED_DIR", help="The same, kept in this directory.", rich_help_panel=PANEL
        ),
    ] = None,
    log_format: Annotated[
        LogFormat | None,
        typer.Option(
            metavar="FORMAT", envvar="AWA_LOG_FORMAT", help="auto, text, json or journal.", rich_help_panel=PANEL
        ),
    ] = None,
    log_level: Annotated[
        LogLevel | None,
        typer.Option(
            metavar="LEVEL", envvar="AWA_LOG_LEVEL", help="debug, info, warning or error.", rich_help_panel=PANEL
        ),
    ] = None,
) -> None:
    """Only its signature is used: the options of every command."""


COMMON = {
    name: parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
    for name, parameter in inspect.signature(_common).parameters.items()
}
CONTEXT = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)


class Environment:
    """The database and the settings of one command. What it starts, it ends: the embedded PostgreSQL."""

    def __init__(self, given: dict[str, Any], found: dict[str, Any]) -> None:
        """`given` stood on the command line; `found` may come from the environment too."""
        self._given = given
        self._found = found
        self._url: str | None = given.get("database_url")
        self._ends = ExitStack()
        if self._url is not None and (given.get("embedded") or given.get("embedded_dir")):
            raise typer.BadParameter("use either --database-url or --embedded, not both")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ends.close()

    @property
    def schema(self) -> Schema:
        return Schema(schema_name(self._given.get("schema")))

    @property
    def settings(self) -> Settings:
        return Settings.from_env()

    def run(self, main: Coroutine[Any, Any, T], *, fast: bool = False) -> T:
        """Runs it to its end; `fast` is for what goes on for long."""
        if fast:
            _spare_the_collector()
        with asyncio.Runner(loop_factory=_fast_loop() if fast else None) as runner:
            return runner.run(main)

    def load(self, spec: str | None) -> App:
        """The app that `module:attribute` names; without one, an app that knows no job."""
        return App() if spec is None else load_app(spec)

    def check(self, spec: str | None) -> None:
        """Says that a start with this app and these settings would go well, or raises. No database is asked."""
        app = self.load(spec)
        if not self._is_embedded and (self.names_database or not app.database.url):
            self.find_url()
        say("all is right")

    async def connect(self, app: App) -> App:
        """Points the app to its database: an option's, else the app's own, else the environment's."""
        own = app.database
        schema = self.schema if "schema" in self._given else own.schema
        if own.url and not self.names_database:
            app.connect_to(Database(own.url, schema, self._given.get("direct_url") or own.direct_url))
        else:
            app.connect_to(Database(self.find_url(), schema, self.find_direct_url()))
        await self._prepare(app.database)
        return app

    async def database(self) -> Database:
        """The database, with its schema in place where it is our own."""
        database = Database(self.find_url(), self.schema, self.find_direct_url())
        await self._prepare(database)
        return database

    @asynccontextmanager
    async def session(self, role: str = "cli") -> AsyncIterator[Session]:
        """A connection to a database whose schema is the right one."""
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
        """A client of a database whose schema is the right one."""
        async with Client.open(await self.database(), self.settings) as client, _checked(client):
            yield client

    @property
    def names_database(self) -> bool:
        """Whether an option says which database."""
        return any(self._given.get(name) for name in ("database_url", "embedded", "embedded_dir"))

    @property
    def _is_embedded(self) -> bool:
        if self._given.get("database_url") is not None:
            return False
        return bool(self._found.get("embedded") or self._found.get("embedded_dir"))

    def find_url(self) -> str:
        """The database's URL: an option's, else the environment's; an embedded server is started for it."""
        if self._url is None:
            self._url = self._start_embedded() if self._is_embedded else database_url()
        return database_url(self._url)

    def find_direct_url(self) -> str | None:
        """The URL that goes past a pooler, if any; a database that an option names has its own from an option too."""
        given = self._given.get("direct_url")
        return given if given is None and (self.names_database or self._is_embedded) else direct_url(given)

    def _start_embedded(self) -> str:
        from awa_py.embedded import EmbeddedPostgres  # only here: it is an extra

        return self._ends.enter_context(EmbeddedPostgres(self._found.get("embedded_dir") or _data_home())).url

    async def _prepare(self, database: Database) -> None:
        if self._is_embedded and database.url == self._url:
            await migrations.migrate(database)


@asynccontextmanager
async def checked(app: App) -> AsyncIterator[App]:
    """Open the app, and check that its database can be reached and has the right schema."""
    async with app, _checked(app.client):
        yield app


@asynccontextmanager
async def _checked(client: Client) -> AsyncIterator[None]:
    try:
        connection = await client.pool.acquire()
    except (*CONNECTION_LOST, *CONNECTION_REFUSED, ValueError) as error:
        raise DatabaseUnavailable(f"cannot connect to the database: {describe(error)}") from error
    with translate_permission_errors(client.database.schema):
        try:
            await migrations.check(connection, client.database.schema)
        finally:
            await client.pool.release(connection)
        yield


def command(
    group: typer.Typer,
    example: str,
    *,
    name: str | None = None,
    panel: str | None = None,
    log_level: LogLevel = LogLevel.WARNING,
) -> Callable[[F], F]:
    """Makes a function a command: it gets the common options, and the Environment that they make as its first
    argument; its help ends with the example."""

    def decorate(function: F) -> F:
        run = _runner(function, log_level)
        group.command(name, epilog=_epilog(example), rich_help_panel=panel)(run)
        return function

    return decorate


def default_command(group: typer.Typer, example: str) -> Callable[[F], F]:
    """Makes a function what a group of commands does where none of them is named."""

    def decorate(function: F) -> F:
        run = _runner(function, LogLevel.WARNING)

        @wraps(run)
        def run_or_pass_on(ctx: typer.Context, **values: Any) -> None:
            if ctx.invoked_subcommand is None:
                run(ctx, **values)
            else:  # what stood before the command's name goes with it
                ctx.find_root().obj = inherited(ctx) | given_options(ctx, {name: values[name] for name in COMMON})

        group.callback(invoke_without_command=True, epilog=_epilog(example))(run_or_pass_on)
        return function

    return decorate


def _runner(function: Callable[..., Any], log_level: LogLevel) -> Callable[..., None]:
    """The function as typer calls it: with the common options, of which it gets the Environment that they make."""

    @wraps(function)
    def run(ctx: typer.Context, **values: Any) -> None:
        found = {name: values.pop(name) for name in COMMON}
        given = {**inherited(ctx), **given_options(ctx, found)}
        found |= given
        logs.configure(found["log_format"] or LogFormat.AUTO, found["log_level"] or log_level)
        with report_errors(), Environment(given, found) as environment:
            result = function(environment, **values)
            if inspect.iscoroutine(result):
                environment.run(result)

    _add_options(run, function)
    return run


def _epilog(example: str) -> str:
    return f"Example: [bold]{escape(example)}[/bold]"


def front(function: Callable[..., None]) -> Callable[..., None]:
    """Gives the root of all commands the common options too: `awa --schema x job list`."""

    @wraps(function)
    def run(ctx: typer.Context, **values: Any) -> None:
        ctx.obj = given_options(ctx, {name: values.pop(name) for name in COMMON})
        function(ctx, **values)

    _add_options(run, function)
    return run


def given_options(ctx: typer.Context, values: dict[str, Any]) -> dict[str, Any]:
    """Those of the options that stood on the command line."""
    sources = {name: ctx.get_parameter_source(name) for name in values}
    return {name: values[name] for name, source in sources.items() if source and source.name == "COMMANDLINE"}


def inherited(ctx: typer.Context) -> dict[str, Any]:
    """The options that stood before the command's name."""
    root = ctx.find_root()
    return root.obj if isinstance(root.obj, dict) else {}


def forget_blank_variables() -> None:
    """A blank variable counts as unset: unit files have lines such as `AWA_QUEUES=`."""
    for name, value in list(os.environ.items()):
        if (name.startswith("AWA_") or name == "DATABASE_URL") and not value.strip():
            del os.environ[name]


def _add_options(run: Callable[..., None], function: Callable[..., Any]) -> None:
    """Shows typer the function's own parameters, but for the first, and the common ones."""
    _, *own = inspect.signature(function, eval_str=True).parameters.values()
    parameters = [CONTEXT, *(each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own), *COMMON.values()]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}


def _data_home() -> Path:
    base = os.environ.get("XDG_DATA_HOME", "")
    return (Path(base) if base else Path.home() / ".local" / "share") / "awa" / "postgres"


def _spare_the_collector() -> None:
    """Thousands of jobs in flight, which come and go without a cycle, should not be gone through at each collection."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_EVERY, *gc.get_threshold()[1:])


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
