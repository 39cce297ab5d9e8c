"""One run of the command: a server, a loop, and signals that end it without leaving anything behind."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import typer

from ..environment import Environment
from ..progress import Progress
from .workload import Bench

T = TypeVar("T")
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def measure(env: Environment, work: Callable[[Bench], Awaitable[T]], *, as_json: bool) -> T:
    """Runs a workload to its end, or to the first signal; what it made is gone then."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    progress = Progress(wanted=not as_json)
    try:
        with _server(env, progress) as url:
            try:
                return env.run(_interruptible(work(Bench(url, progress))), fast=True)
            finally:
                for number in SIGNALS:  # the rest ends by itself: an impatient Ctrl-C would only leave something behind
                    signal.signal(number, signal.SIG_IGN)
    except (KeyboardInterrupt, asyncio.CancelledError):
        typer.echo("Stopped. Nothing is left behind.", err=True)
        raise KeyboardInterrupt from None


async def _interruptible(work: Awaitable[T]) -> T:
    """The first signal cancels the work; what comes after it finds the tidying up under way, and does not disturb."""
    task, stopped = asyncio.current_task(), False
    assert task is not None

    def stop() -> None:
        nonlocal stopped
        if not stopped:
            stopped = True
            task.cancel()

    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop)
    return await work


@contextmanager
def _server(env: Environment, progress: Progress) -> Iterator[str]:
    """The URL of a PostgreSQL: the one that an option names, else a temporary one."""
    if env.names_database:
        yield env.find_direct_url() or env.find_url()
        return
    from awa_py.embedded import EmbeddedPostgres  # only here: it is an extra

    server = EmbeddedPostgres()
    with progress.bar("starting PostgreSQL"):
        server.start()
    try:
        yield server.url
    finally:
        with progress.bar("stopping PostgreSQL"):
            server.stop()
