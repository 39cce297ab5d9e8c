"""The `awa` command: its table of commands."""

from importlib.metadata import version
from typing import Annotated

import typer

from . import cluster, cron, enqueue, job, maintenance, migrate, queue, worker
from .environment import command, forget_blank_variables, front
from .logs import LogLevel
from .output import say
from .parsing import example

HELP = "A job queue for Python that needs nothing but PostgreSQL."

app = typer.Typer(
    name="awa",
    help=HELP,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,  # they hold the database's password
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"awa {version('awa')}")
        raise typer.Exit


@app.callback(epilog=example("awa worker tasks:app -q default"))
@front
def root(
    ctx: typer.Context,
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A job queue for Python that needs nothing but PostgreSQL."""


app.command(epilog=example("awa migrate --status"))(command(LogLevel.WARNING)(migrate.migrate))
app.command(epilog=example("awa worker tasks:app -q email=10 -q default"))(command(LogLevel.INFO)(worker.worker))
app.command(epilog=example("awa maintenance tasks:app --once rescue"))(command(LogLevel.INFO)(maintenance.maintenance))
app.command(epilog=example("""awa enqueue send_email '{"to": "me@example.com"}' -q email --delay 10m"""))(
    command()(enqueue.enqueue)
)
app.add_typer(job.app, name="job")
app.add_typer(queue.app, name="queue")
app.add_typer(cron.app, name="cron")
app.command(epilog=example("awa workers"))(command()(cluster.workers))
app.command(epilog=example("awa leader --json"))(command()(cluster.leader))
app.command(epilog=example("awa stats --watch"))(command()(cluster.stats))


def main() -> None:
    forget_blank_variables()
    app()
