"""Run a workload on a server, and clean up when a signal interrupts it."""

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
    """Run a workload until it ends or a signal arrives, and remove what it created."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    progress = Progress(wanted=not as_json)
    try:
        with _server(env, progress) as url:
            try:
                return env.run(_interruptible(work(Bench(url, progress))), fast=True)
            finally:
                for number in SIGNALS:  # a second Ctrl-C would interrupt the cleanup, which takes only seconds
                    signal.signal(number, signal.SIG_IGN)
    except (KeyboardInterrupt, asyncio.CancelledError):
        typer.echo("Stopped. Nothing is left behind.", err=True)
        raise KeyboardInterrupt from None


async def _interruptible(work: Awaitable[T]) -> T:
    """Cancel the work at the first signal. Ignore further signals: they would interrupt the cleanup."""
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
    """Yield the URL of the server that an option names, else of a temporary one."""
    if env.names_database:
        yield env.find_direct_url() or env.find_url()
        return
    from awa_py.embedded import EmbeddedPostgres  # imported here because it is an optional dependency

    server = EmbeddedPostgres()
    with progress.bar("starting PostgreSQL"):
        server.start()
    try:
        yield server.url
    finally:
        with progress.bar("stopping PostgreSQL"):
            server.stop()
