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
from .display import Display, LineDisplay, ScreenDisplay
from .processes import STALENESS, WORKERS, DemoWorkers, start_workers
from .snapshot import ChangeDetector, Snapshot, take_snapshot

if TYPE_CHECKING:
    from .scenario import Scenario

SCHEMA = Schema("awa_demo")
TICK_S = 0.25
PIPE_SECONDS = 15.0
CLEANED_UP = "Nothing is left behind."
STOPPED_EARLY = f"Stopped before the demo started.\n{CLEANED_UP}"
# The demo fails if one of these has not happened after this time.
DEADLINES_S = {"completed": 5.0, "retried": 15.0, "fired": 15.0, "rescued": 20.0}


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The summary, and the events that should have happened but did not."""

    summary: str
    missing: str | None


def demo(
    env: Environment,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=1,
            envvar="AWA_DEMO_SECONDS",
            help=f"Stop after this time. Default: run until Ctrl-C, or {PIPE_SECONDS:.0f} seconds without a terminal.",
        ),
    ] = None,
) -> None:
    """Show awa at work: PostgreSQL, two workers, a leader and sample jobs. Everything is removed at the end."""
    if seconds is None and not sys.stdout.isatty():
        seconds = PIPE_SECONDS
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _server(env) as (url, description):
            result = env.run(_run(Database(url, SCHEMA), description, seconds))
    except KeyboardInterrupt:
        say(STOPPED_EARLY)
        return
    say(result.summary)
    if result.missing is not None:
        raise AwaError(result.missing)


@contextmanager
def _server(env: Environment) -> Iterator[tuple[str, str]]:
    """Yield the URL and a description of the server: the one that an option names, else a temporary one."""
    if env.names_database:
        yield env.find_direct_url() or env.find_url(), f"in the schema {SCHEMA.name}"
        _ignore_signals()
        return
    from awa_py.embedded import EmbeddedPostgres  # imported here because it is an optional dependency

    say("starting PostgreSQL in a temporary directory …")
    with EmbeddedPostgres() as server:
        yield server.url, "embedded, temporary"
        _ignore_signals()


async def _run(database: Database, description: str, seconds: float | None) -> DemoResult:
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with _schema(database) as version:
        from .scenario import Scenario  # imported here because it creates an app, which reads the environment

        scenario = Scenario()
        say(f"starting {WORKERS} workers …")
        with start_workers(database) as workers:
            async with scenario.open(database) as session:
                if not await workers.wait_until_ready(session, stopping):
                    return DemoResult(STOPPED_EARLY, None)
                display = _display(f"{version}, {description}", seconds)
                result = await _play(scenario, workers, session, display, stopping, seconds)
                say("stopping …")
                return result


async def _play(
    scenario: "Scenario",
    workers: DemoWorkers,
    session: Session,
    display: Display,
    stopping: asyncio.Event,
    seconds: float | None,
) -> DemoResult:
    """Enqueue, read the database and update the display on each tick."""
    detector = ChangeDetector()
    started = time.monotonic()
    with display:
        while True:
            at_s = time.monotonic() - started
            display.add_events(await scenario.enqueue(at_s))
            snapshot = await take_snapshot(session, at_s, list(scenario.watched), staleness=STALENESS)
            display.add_events(detector.detect(snapshot))
            display.add_events(scenario.act(snapshot))
            display.show(snapshot)
            workers.check()
            is_over = seconds is not None and time.monotonic() - started + TICK_S > seconds
            if is_over or await wait_for_event(stopping, TICK_S):
                return summarize(snapshot, detector, first_kill_s=scenario.first_kill_s)


def summarize(snapshot: Snapshot, detector: ChangeDetector, *, first_kill_s: float | None) -> DemoResult:
    counts = {"completed": snapshot.total(State.COMPLETED), **detector.counts}
    counted_from_s = {"rescued": snapshot.at_s if first_kill_s is None else first_kill_s}
    missing = [
        "no schedule fired" if event == "fired" else f"no job was {event}"
        for event, deadline_s in DEADLINES_S.items()
        if not counts.get(event) and snapshot.at_s - counted_from_s.get(event, 0.0) > deadline_s
    ]
    completed = counts["completed"]
    summary = (
        f"{snapshot.at_s:.0f} s: {completed:,} jobs completed ({completed / max(snapshot.at_s, 1):,.0f}/s), "
        f"{detector.counts['retried']} retried, {detector.counts['rescued']} rescued, "
        f"{detector.counts['fired']} enqueued by cron.\n{CLEANED_UP}"
    )
    return DemoResult(summary, f"{', '.join(missing)} in {snapshot.at_s:.0f} s" if missing else None)


@asynccontextmanager
async def _schema(database: Database) -> AsyncIterator[str]:
    """Create the demo's schema and drop it at the end. Yields the server's version."""
    connection = await database.connect_sessionless("demo")
    try:
        if await connection.fetchval("SELECT pg_catalog.to_regnamespace($1)", SCHEMA.name) is not None:
            raise AwaError(
                f"the schema {SCHEMA.name} already exists: either another demo is running in this database, or one was "
                f"killed; in that case, drop the schema: DROP SCHEMA {SCHEMA.name} CASCADE"
            )
        await migrations.migrate(database)
        try:
            version = connection.get_server_version()
            yield f"{version.major}.{version.minor}"
        finally:
            with suppress(*CONNECTION_LOST):  # if the server is gone, there is nothing to drop
                await connection.execute(f"DROP SCHEMA {SCHEMA.name} CASCADE")
    finally:
        await connection.close()


def _display(database: str, seconds: float | None) -> Display:
    terminal = console()
    if sys.stdout.isatty() and not terminal.is_dumb_terminal:
        return ScreenDisplay(terminal, database=database, seconds=seconds)
    say(f"PostgreSQL {database}")
    say(f"the sample jobs are in {Path(__file__).with_name('jobs.py')}")
    return LineDisplay(say)


def _ignore_signals() -> None:
    """Ignore further signals: the cleanup takes only seconds, and a second Ctrl-C would interrupt it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
