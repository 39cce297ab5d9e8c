"""The `awa` command and its subcommands."""

import sys
from importlib.metadata import version
from io import TextIOWrapper
from typing import Annotated

import typer

from awa_py.systemd.reload import RestartRequested

from . import (
    cron,
    enqueue,
    health,
    job,
    kinds,
    leader,
    maintenance,
    migrate,
    monitoring,
    queue,
    rate,
    route,
    stats,
    systemd,
    worker,
    workers,
)
from .bench import command as bench
from .decorators import command, common_options, unset_blank_variables
from .demo.command import demo
from .doctor import doctor
from .logs import LogLevel
from .output import say
from .secrets import RedactingGroup

RUN = "Run"
INSPECT = "Inspect and change"

app = typer.Typer(
    name="awa",
    cls=RedactingGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,  # local variables contain the database's password
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"awa {version('awa-py')}")
        raise typer.Exit


@app.callback(epilog="Example: [bold]awa worker tasks:app -q default[/bold]")
@common_options
def root(
    ctx: typer.Context,
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A job queue for Python that needs nothing but PostgreSQL."""


command(app, "awa demo --seconds 20", panel=RUN)(demo)
command(app, "awa migrate --status", panel=RUN)(migrate.migrate)
command(app, "awa worker tasks:app -q email=10 -q default", panel=RUN, log_level=LogLevel.INFO)(worker.worker)
command(app, "awa maintenance --once rescue", panel=RUN, log_level=LogLevel.INFO)(maintenance.maintenance)
command(app, """awa enqueue send_email '{"to": "me@example.com"}' --delay 10m""", panel=RUN)(enqueue.enqueue)
app.add_typer(bench.app, name="bench", rich_help_panel=RUN)
app.add_typer(systemd.app, name="systemd", rich_help_panel=RUN)
app.add_typer(job.app, name="job", rich_help_panel=INSPECT)
app.add_typer(queue.app, name="queue", rich_help_panel=INSPECT)
app.add_typer(route.app, name="route", rich_help_panel=INSPECT)
app.add_typer(cron.app, name="cron", rich_help_panel=INSPECT)
app.add_typer(kinds.app, name="kinds", rich_help_panel=INSPECT)
app.add_typer(rate.app, name="rate", rich_help_panel=INSPECT)
app.add_typer(workers.app, name="workers", rich_help_panel=INSPECT)
command(app, "awa leader --json", panel=INSPECT)(leader.leader)
command(app, "awa stats --watch", panel=INSPECT)(stats.stats)
command(app, "awa doctor", panel=INSPECT)(doctor)
command(app, "awa health --port 9465 --live", panel=INSPECT)(health.health)
app.add_typer(monitoring.app, name="monitoring", rich_help_panel=INSPECT)


def main() -> None:
    unset_blank_variables()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a job may contain characters that the terminal cannot show
    try:
        app(prog_name="awa")
    except RestartRequested as request:
        request.exec()
