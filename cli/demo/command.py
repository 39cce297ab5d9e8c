"""awa demo"""

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from awa_py.background import wait_for_event
from awa_py.db import migrations
from awa_py.db.database import Database
from awa_py.db.errors import CONNECTION_LOST
from awa_py.db.schema import Schema
from awa_py.errors import AwaError
from awa_py.model.job import State
from awa_py.store.session import Session

from ..environment import Environment
from ..output import console, say
from .crew import STALENESS, WORKERS, Crew, crew
from .scene import Chronicle, Scene, look
from .view import Lines, Screen, View

if TYPE_CHECKING:
    from .stage import Stage

SCHEMA = Schema("awa_demo")
TICK_S = 0.25
PIPE_SECONDS = 15.0
NOT_BEGUN = "Stopped before it began.\nNothing is left behind."
# Something is wrong where it did not happen within so many seconds.
PATIENCE_S = {"completed": 5.0, "retried": 15.0, "fired": 15.0, "rescued": 20.0}


@dataclass(frozen=True, slots=True)
class Ending:
    """What came of it."""

    summary: str
    missing: str | None


def demo(
    env: Environment,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=1,
            envvar="AWA_DEMO_SECONDS",
            help=f"How long to run. Else until Ctrl-C; without a terminal, for {PIPE_SECONDS:.0f} seconds.",
        ),
    ] = None,
) -> None:
    """See it work: PostgreSQL, two workers, the leader and sample jobs. It leaves nothing behind."""
    if seconds is None and not sys.stdout.isatty():
        seconds = PIPE_SECONDS
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _server(env) as (url, where):
            ending = env.run(_perform(Database(url, SCHEMA), where, seconds))
    except KeyboardInterrupt:
        say(NOT_BEGUN)
        return
    say(ending.summary)
    if ending.missing is not None:
        raise AwaError(ending.missing)


@contextmanager
def _server(env: Environment) -> Iterator[tuple[str, str]]:
    """The URL of a PostgreSQL and what it is: the one that an option names, else a temporary one."""
    if env.names_database:
        yield env.find_direct_url() or env.find_url(), f"in the schema {SCHEMA.name}"
        _finish_undisturbed()
        return
    from awa_py.embedded import EmbeddedPostgres  # only here: it is an extra

    say("starting PostgreSQL in a temporary directory …")
    with EmbeddedPostgres() as server:
        yield server.url, "embedded, temporary"
        _finish_undisturbed()


async def _perform(database: Database, where: str, seconds: float | None) -> Ending:
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with _schema(database) as version:
        from .stage import Stage  # only here: it makes an app, which reads the environment

        stage = Stage()
        say(f"starting {WORKERS} workers …")
        with crew(database) as workers:
            async with stage.open(database) as session:
                if not await workers.ready(session, stopping):
                    return Ending(NOT_BEGUN, None)
                view = _view(f"{version}, {where}", seconds)
                ending = await _play(stage, workers, session, view, stopping, seconds)
                say("stopping …")
                return ending


async def _play(
    stage: "Stage", workers: Crew, session: Session, view: View, stopping: asyncio.Event, seconds: float | None
) -> Ending:
    """Lets it run, a tick at a time: send jobs, look, tell, act."""
    chronicle = Chronicle()
    began = time.monotonic()
    with view:
        while True:
            at_s = time.monotonic() - began
            view.tell(await stage.send(at_s))
            scene = await look(session, at_s, list(stage.watched), staleness=STALENESS)
            view.tell(chronicle.tell(scene))
            view.tell(stage.act(scene))
            view.show(scene)
            workers.check()
            over = seconds is not None and time.monotonic() - began + TICK_S > seconds
            if over or await wait_for_event(stopping, TICK_S):
                return ending_of(scene, chronicle, killed_at_s=stage.killed_at_s)


def ending_of(scene: Scene, chronicle: Chronicle, *, killed_at_s: float | None) -> Ending:
    """Sums up, and says what should have happened by now and did not."""
    happened = {"completed": scene.total(State.COMPLETED), **chronicle.tally}
    since = {"rescued": scene.at_s if killed_at_s is None else killed_at_s}
    missing = [
        "no schedule fired" if what == "fired" else f"no job was {what}"
        for what, patience_s in PATIENCE_S.items()
        if not happened.get(what) and scene.at_s - since.get(what, 0.0) > patience_s
    ]
    done = happened["completed"]
    tally = chronicle.tally
    summary = (
        f"{scene.at_s:.0f} s: {done:,} jobs done ({done / max(scene.at_s, 1):,.0f}/s), {tally['retried']} retried, "
        f"{tally['rescued']} rescued, {tally['fired']} by cron.\nNothing is left behind."
    )
    return Ending(summary, f"{', '.join(missing)} in {scene.at_s:.0f} s" if missing else None)


@asynccontextmanager
async def _schema(database: Database) -> AsyncIterator[str]:
    """A schema of the demo's own, which is gone afterwards. Yields the server's version."""
    connection = await database.connect_sessionless("demo")
    try:
        if await connection.fetchval("SELECT to_regnamespace($1)", SCHEMA.name) is not None:
            raise AwaError(
                f"the schema {SCHEMA.name} exists: another demo runs in this database, or was killed there; "
                f"then drop it: DROP SCHEMA {SCHEMA.name} CASCADE"
            )
        await migrations.migrate(database)
        try:
            version = connection.get_server_version()
            yield f"{version.major}.{version.minor}"
        finally:
            with suppress(*CONNECTION_LOST):  # a server that is gone has no schema either
                await connection.execute(f"DROP SCHEMA {SCHEMA.name} CASCADE")
    finally:
        await connection.close()


def _view(database: str, seconds: float | None) -> View:
    terminal = console()
    if sys.stdout.isatty() and not terminal.is_dumb_terminal:
        return Screen(terminal, database=database, seconds=seconds)
    say(f"PostgreSQL {database}")
    say(f"the sample jobs are in {Path(__file__).with_name('jobs.py')}")
    return Lines(say)


def _finish_undisturbed() -> None:
    """From here on everything ends by itself, within seconds: an impatient Ctrl-C would only leave something behind."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
