"""Decorators that make a function a command of `awa`, with the options that all commands share."""

import inspect
import os
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.markup import escape

from . import logs
from .environment import Environment
from .errors import report_errors
from .logs import LogFormat, LogLevel

F = TypeVar("F", bound=Callable[..., Any])

PANEL = "Connection and logging"


_option = partial(typer.Option, rich_help_panel=PANEL)


def _common(
    database_url: Annotated[
        str | None,
        _option(
            metavar="URL",
            envvar=["AWA_DATABASE_URL", "DATABASE_URL"],
            help="Database to use: postgresql://user:password@host/db.",
        ),
    ] = None,
    direct_url: Annotated[
        str | None,
        _option(
            metavar="URL", envvar="AWA_DIRECT_URL", help="The same database without PgBouncer, if the URL leads to one."
        ),
    ] = None,
    schema: Annotated[
        str | None, _option(metavar="NAME", envvar="AWA_SCHEMA", help="Schema of the tables. Default: awa.")
    ] = None,
    embedded: Annotated[
        bool, _option("--embedded", envvar="AWA_EMBEDDED", help="Use a PostgreSQL server that awa starts itself.")
    ] = False,
    embedded_dir: Annotated[
        Path | None,
        _option(metavar="DIR", envvar="AWA_EMBEDDED_DIR", help="The same, with its data in this directory."),
    ] = None,
    log_format: Annotated[
        LogFormat | None,
        _option(metavar="FORMAT", envvar="AWA_LOG_FORMAT", help="auto, text, json or journal. Default: auto."),
    ] = None,
    log_level: Annotated[
        LogLevel | None,
        _option(
            metavar="LEVEL",
            envvar="AWA_LOG_LEVEL",
            help="debug, info, warning, error or critical. Default: info for worker and maintenance, else warning.",
        ),
    ] = None,
) -> None:
    """Declare the options of every command. Only the signature is used."""


COMMON_OPTIONS = {
    name: parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
    for name, parameter in inspect.signature(_common).parameters.items()
}
CONTEXT = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)


def command(
    group: typer.Typer,
    example: str,
    *,
    name: str | None = None,
    panel: str | None = None,
    log_level: LogLevel = LogLevel.WARNING,
) -> Callable[[F], F]:
    """Make a function a command with the common options.

    Its first argument is the Environment, and its help ends with the example.
    """

    def decorate(function: F) -> F:
        run = _runner(function, log_level)
        group.command(name, epilog=_epilog(example), rich_help_panel=panel)(run)
        return function

    return decorate


def default_command(group: typer.Typer, example: str) -> Callable[[F], F]:
    """Make a function the command that a group runs if no subcommand is named."""

    def decorate(function: F) -> F:
        run = _runner(function, LogLevel.WARNING)

        @wraps(run)
        def run_unless_subcommand(ctx: typer.Context, **values: Any) -> None:
            if ctx.invoked_subcommand is None:
                run(ctx, **values)
            else:  # pass on the options before the subcommand's name
                ctx.find_root().obj = inherited(ctx) | given_options(
                    ctx, {name: values[name] for name in COMMON_OPTIONS}
                )

        group.callback(invoke_without_command=True, epilog=_epilog(example))(run_unless_subcommand)
        return function

    return decorate


def _runner(function: Callable[..., Any], log_level: LogLevel) -> Callable[..., None]:
    """Return the function that typer calls: it turns the common options into an Environment."""

    @wraps(function)
    def run(ctx: typer.Context, **values: Any) -> None:
        found = {name: values.pop(name) for name in COMMON_OPTIONS}
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


def common_options(function: Callable[..., None]) -> Callable[..., None]:
    """Accept the common options before the command's name, too: `awa --schema x job list`."""

    @wraps(function)
    def run(ctx: typer.Context, **values: Any) -> None:
        ctx.obj = given_options(ctx, {name: values.pop(name) for name in COMMON_OPTIONS})
        function(ctx, **values)

    _add_options(run, function)
    return run


def given_options(ctx: typer.Context, values: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given on the command line."""
    sources = {name: ctx.get_parameter_source(name) for name in values}
    return {name: values[name] for name, source in sources.items() if source and source.name == "COMMANDLINE"}


def inherited(ctx: typer.Context) -> dict[str, Any]:
    """Return the options that were given before the command's name."""
    root = ctx.find_root()
    return root.obj if isinstance(root.obj, dict) else {}


def unset_blank_variables() -> None:
    """Treat blank variables as unset: unit files have lines such as `AWA_QUEUES=`."""
    for name, value in list(os.environ.items()):
        if (name.startswith("AWA_") or name == "DATABASE_URL") and not value.strip():
            del os.environ[name]


def _add_options(run: Callable[..., None], function: Callable[..., Any]) -> None:
    """Give `run` the signature that typer reads: the function's parameters except the first, and the common ones."""
    _, *own = inspect.signature(function, eval_str=True).parameters.values()
    parameters = [
        CONTEXT,
        *(each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own),
        *COMMON_OPTIONS.values(),
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
