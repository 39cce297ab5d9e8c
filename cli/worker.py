"""awa worker"""

import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from awa_py.app import App
from awa_py.background import cancel_and_wait, wait_for_event
from awa_py.builtin import add_builtin
from awa_py.errors import ConfigError
from awa_py.model.worker_name import WorkerName
from awa_py.observability.metrics import Metrics
from awa_py.systemd.notifier import STARTUP_INTERVAL_S, Notifier
from awa_py.systemd.reload import Reload
from awa_py.systemd.service import Service
from awa_py.systemd.summary import Summary
from awa_py.worker.processes.lifeline import watch_supervisor
from awa_py.worker.processes.status_pipe import StatusReporter
from awa_py.worker.processes.supervisor import INDEX_VARIABLE, Supervisor
from awa_py.worker.worker import DEFAULT_CONCURRENCY, Worker

from .environment import Environment
from .metrics import LOOPBACK, MetricsHost, MetricsPort, serve_metrics, serve_processes
from .parsing import AppArgument, CheckOption, parse_duration, parse_queue

QUEUES_VARIABLE = "AWA_QUEUES"
LABEL = "Label: PREFIX-worker-VERSION-ID"


def _parse_root(text: str) -> Path | None:
    """A directory. A blank is none: to `Path` it is the current directory, and nobody has allowed that."""
    if not text.strip():
        return None
    if not os.path.exists(text):
        raise typer.BadParameter(f"directory '{text}' does not exist")
    if not os.path.isdir(text):
        raise typer.BadParameter(f"'{text}' is a file, not a directory")
    return Path(text)


def worker(
    env: Environment,
    spec: AppArgument,
    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue",
            "-q",
            metavar="NAME[=LIMIT]",
            help=rf"A queue, and how many of its jobs may run at once; may be repeated. \[env var: {QUEUES_VARIABLE}]",
        ),
    ] = None,
    worker_prefix: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", envvar="AWA_WORKER_PREFIX", help="Its label begins with it.", rich_help_panel=LABEL
        ),
    ] = None,
    worker_version: Annotated[
        str | None,
        typer.Option(metavar="TEXT", envvar="AWA_WORKER_VERSION", help="Your app's version.", rich_help_panel=LABEL),
    ] = None,
    worker_id: Annotated[
        str | None,
        typer.Option(metavar="TEXT", envvar="AWA_WORKER_ID", help="Instead of four hex digits.", rich_help_panel=LABEL),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency",
            "-c",
            min=1,
            metavar="N",
            envvar="AWA_CONCURRENCY",
            help=f"How many jobs at once, in all; {DEFAULT_CONCURRENCY} unless set, or the largest limit.",
        ),
    ] = None,
    processes: Annotated[
        int,
        typer.Option(
            "--processes", "-p", min=1, metavar="N", envvar="AWA_PROCESSES", help="How many such workers to run."
        ),
    ] = 1,
    maintenance: Annotated[
        bool,
        typer.Option(
            "--maintenance/--no-maintenance",
            envvar="AWA_MAINTENANCE",
            help="Whether it may lead.",
            rich_help_panel="Leadership",
        ),
    ] = True,
    burst: Annotated[
        bool, typer.Option("--burst", envvar="AWA_BURST", help="End when nothing is due any more.")
    ] = False,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = LOOPBACK,
    shutdown_timeout: Annotated[
        timedelta | None,
        typer.Option(
            parser=parse_duration,
            envvar="AWA_SHUTDOWN_TIMEOUT",
            metavar="DURATION",
            help="How long running jobs may go on after a signal to stop; 30s unless set.",
        ),
    ] = None,
    allow_exec: Annotated[
        Path | None,
        typer.Option(
            metavar="ROOT",
            envvar="AWA_ALLOW_EXEC",
            parser=_parse_root,
            help="Let jobs of the kind cmd_exec run the programs in this directory.",
        ),
    ] = None,
    check: CheckOption = False,
) -> None:
    """Run jobs until told to stop.

    One SIGTERM or Ctrl-C lets running jobs finish; a second one ends them at once.
    """
    limits = _limits(queue or os.environ.get(QUEUES_VARIABLE, "").split(","))
    slots = concurrency or max(DEFAULT_CONCURRENCY, *(limit or 0 for limit in limits.values()))
    queues = {name: limit or slots for name, limit in limits.items()}
    name = _name(worker_prefix, worker_version, worker_id)
    index = os.environ.pop(INDEX_VARIABLE, None)  # not for the processes that jobs start
    if check:
        env.check(spec)
        return
    settings = Reload()
    notifier = Notifier.from_environ(os.environ)
    if processes > 1 and index is None:
        again = [sys.executable, "-m", "awa_cli", *sys.argv[1:]]
        supervisor = Supervisor(
            again, processes, with_metrics=metrics_port is not None, notifier=notifier, reload=settings
        )
        with serve_processes(supervisor, host=metrics_host, port=metrics_port):
            code = supervisor.run()
        settings.restart_if_requested()
        raise typer.Exit(code)
    app = env.load(spec)
    add_builtin(app.registry, exec_root=allow_exec, max_result_bytes=app.settings.max_args_bytes)
    if shutdown_timeout is not None:
        app.settings = replace(app.settings, shutdown_timeout=shutdown_timeout)
    work = _work(
        env,
        app,
        queues,
        slots,
        name if index is None else name.numbered(int(index) + 1),
        maintenance,
        burst,
        metrics_host,
        metrics_port,
        notifier,
        settings if index is None else None,
    )
    abandoned = env.run(work, fast=True)
    settings.restart_if_requested()
    if abandoned:
        _leave()


async def _work(
    env: Environment,
    app: App,
    queues: dict[str, int],
    concurrency: int,
    name: WorkerName,
    maintenance: bool,
    burst: bool,
    host: str,
    port: int | None,
    notifier: Notifier,
    settings: Reload | None,
) -> int:
    """Works until told to stop. How many handlers were left behind in their threads."""
    metrics = Metrics(timing=port is not None)
    await env.connect(app)
    worker = app.worker(queues, concurrency=concurrency, maintenance=maintenance, metrics=metrics, name=name)
    summary = Summary(metrics.stats, f"queues {', '.join(queues)}")
    service = Service(worker, stop=worker.stop, summary=summary, notifier=notifier, reload=settings)
    watch_supervisor()
    reporting = asyncio.create_task(_report(worker, StatusReporter.from_environ()))
    try:
        async with service, app:  # handlers may enqueue
            with serve_metrics(metrics, worker, host=host, port=port):
                await worker.run(until_idle=burst)
    finally:
        await cancel_and_wait(reporting)
    return worker.abandoned


async def _report(worker: Worker, reporter: StatusReporter) -> None:
    """Tells the supervisor that the worker is at work; for ever, where it wants to know how it goes on."""
    while not worker.ready.is_set():
        _tell(worker, reporter)
        await wait_for_event(worker.ready, reporter.interval_s or None)
    while reporter.interval_s:
        _tell(worker, reporter)
        await asyncio.sleep(min(STARTUP_INTERVAL_S, reporter.interval_s) if worker.problems() else reporter.interval_s)
    _tell(worker, reporter)


def _tell(worker: Worker, reporter: StatusReporter) -> None:
    if worker.responds(within_s=2 * reporter.interval_s):
        reporter.send(worker.metrics.stats(), has_started=worker.ready.is_set(), is_ready=not worker.problems())


def _leave() -> None:
    """Ends the process at once: a thread that hangs would keep it for ever, and its job has been given back."""
    logging.shutdown()
    sys.stdout.flush()
    os._exit(0)


def _name(prefix: str | None, version: str | None, own_id: str | None) -> WorkerName:
    try:
        return WorkerName(prefix=prefix, version=version, id=own_id)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None


def _limits(specs: Sequence[str]) -> dict[str, int | None]:
    """How many jobs each queue may run at once; blanks are dropped, and so are queues that were named before."""
    limits: dict[str, int | None] = {}
    for spec in filter(None, map(str.strip, specs)):
        name, limit = _limit(spec)
        limits.setdefault(name, limit)
    if not limits:
        raise typer.BadParameter(f"no queue: use -q NAME or {QUEUES_VARIABLE}")
    return limits


def _limit(spec: str) -> tuple[str, int | None]:
    name, equals, text = spec.rpartition("=")
    if not equals:
        return parse_queue(spec), None
    if not text.isdecimal() or int(text) < 1:
        raise typer.BadParameter(f'queue "{spec}": its limit is a number from 1 on')
    return parse_queue(name), int(text)
