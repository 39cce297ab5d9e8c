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
LABEL_PANEL = "Label: PREFIX-worker-VERSION-ID"


def _parse_root(text: str) -> Path | None:
    """Parse a directory. A blank is None, because `Path("")` would allow the current directory."""
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
            help=rf"Queue to serve, and how many of its jobs run at once; repeatable. \[env var: {QUEUES_VARIABLE}]",
        ),
    ] = None,
    worker_prefix: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            envvar="AWA_WORKER_PREFIX",
            help="First part of the label; without it, the worker has none.",
            rich_help_panel=LABEL_PANEL,
        ),
    ] = None,
    worker_version: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", envvar="AWA_WORKER_VERSION", help="Version of your app.", rich_help_panel=LABEL_PANEL
        ),
    ] = None,
    worker_id: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            envvar="AWA_WORKER_ID",
            help="Default: four hexadecimal digits.",
            rich_help_panel=LABEL_PANEL,
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency",
            "-c",
            min=1,
            metavar="N",
            envvar="AWA_CONCURRENCY",
            help=f"Maximum of jobs to run at once. Default: {DEFAULT_CONCURRENCY}, or the largest limit of a queue.",
        ),
    ] = None,
    processes: Annotated[
        int,
        typer.Option(
            "--processes", "-p", min=1, metavar="N", envvar="AWA_PROCESSES", help="Number of worker processes."
        ),
    ] = 1,
    maintenance: Annotated[
        bool,
        typer.Option(
            "--maintenance/--no-maintenance",
            envvar="AWA_MAINTENANCE",
            help="Take part in the election of the leader.",
            rich_help_panel="Leadership",
        ),
    ] = True,
    burst: Annotated[bool, typer.Option("--burst", envvar="AWA_BURST", help="Exit when no job is due.")] = False,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = LOOPBACK,
    shutdown_timeout: Annotated[
        timedelta | None,
        typer.Option(
            parser=parse_duration,
            envvar="AWA_SHUTDOWN_TIMEOUT",
            metavar="DURATION",
            help="How long running jobs may continue after a signal to stop. Default: 30s.",
        ),
    ] = None,
    allow_exec: Annotated[
        Path | None,
        typer.Option(
            metavar="ROOT",
            envvar="AWA_ALLOW_EXEC",
            parser=_parse_root,
            help="Allow jobs of the kind cmd_exec to run the programs in this directory.",
        ),
    ] = None,
    check: CheckOption = False,
) -> None:
    """Run jobs until a signal arrives.

    The first SIGTERM or Ctrl-C lets running jobs finish; the second one ends them at once.
    """
    limits = _parse_limits(queue or os.environ.get(QUEUES_VARIABLE, "").split(","))
    slots = concurrency or max(DEFAULT_CONCURRENCY, *(limit or 0 for limit in limits.values()))
    queues = {name: limit or slots for name, limit in limits.items()}
    name = _parse_name(worker_prefix, worker_version, worker_id)
    index = os.environ.pop(INDEX_VARIABLE, None)  # removed, so that the processes of jobs do not inherit it
    if check:
        env.check(spec)
        return
    reload = Reload()
    notifier = Notifier.from_environ(os.environ)
    if processes > 1 and index is None:
        child_command = [sys.executable, "-m", "awa_cli", *sys.argv[1:]]
        supervisor = Supervisor(
            child_command, processes, with_metrics=metrics_port is not None, notifier=notifier, reload=reload
        )
        with serve_processes(supervisor, host=metrics_host, port=metrics_port):
            code = supervisor.run()
        reload.restart_if_requested()
        raise typer.Exit(code)
    app = env.load(spec)
    add_builtin(app.registry, exec_root=allow_exec, max_result_bytes=app.settings.max_args_bytes)
    if shutdown_timeout is not None:
        app.settings = replace(app.settings, shutdown_timeout=shutdown_timeout)
    main = _run_worker(
        env,
        app,
        queues=queues,
        concurrency=slots,
        name=name if index is None else name.numbered(int(index) + 1),
        maintenance=maintenance,
        burst=burst,
        host=metrics_host,
        port=metrics_port,
        notifier=notifier,
        reload=reload if index is None else None,
    )
    abandoned = env.run(main, fast=True)
    reload.restart_if_requested()
    if abandoned:
        _exit_now()


async def _run_worker(
    env: Environment,
    app: App,
    *,
    queues: dict[str, int],
    concurrency: int,
    name: WorkerName,
    maintenance: bool,
    burst: bool,
    host: str,
    port: int | None,
    notifier: Notifier,
    reload: Reload | None,
) -> int:
    """Run a worker until a signal arrives. Return the number of handlers that still run in threads."""
    metrics = Metrics(timing=port is not None)
    await env.connect(app)
    worker = app.worker(queues, concurrency=concurrency, maintenance=maintenance, metrics=metrics, name=name)
    summary = Summary(metrics.stats, f"queues {', '.join(queues)}")
    service = Service(worker, stop=worker.stop, summary=summary, notifier=notifier, reload=reload)
    watch_supervisor()
    reporting = asyncio.create_task(_report_status(worker, StatusReporter.from_environ()))
    try:
        async with service, app.unchecked():  # handlers may enqueue
            with serve_metrics(metrics, worker, host=host, port=port):
                await worker.run(until_idle=burst)
    finally:
        await cancel_and_wait(reporting)
    return worker.abandoned


async def _report_status(worker: Worker, reporter: StatusReporter) -> None:
    """Tell the supervisor when the worker is ready, and if it wants periodic reports, send them until cancelled."""
    while not worker.ready.is_set():
        _send_status(worker, reporter)
        await wait_for_event(worker.ready, reporter.interval_s or None)
    while reporter.interval_s:
        _send_status(worker, reporter)
        await asyncio.sleep(min(STARTUP_INTERVAL_S, reporter.interval_s) if worker.problems() else reporter.interval_s)
    _send_status(worker, reporter)


def _send_status(worker: Worker, reporter: StatusReporter) -> None:
    if worker.responds(within_s=2 * reporter.interval_s):
        reporter.send(worker.metrics.stats(), has_started=worker.ready.is_set(), is_ready=not worker.problems())


def _exit_now() -> None:
    """Exit without waiting for threads: one that hangs would block the exit, and its job is already released."""
    logging.shutdown()
    sys.stdout.flush()
    os._exit(0)


def _parse_name(prefix: str | None, version: str | None, worker_id: str | None) -> WorkerName:
    try:
        return WorkerName(prefix=prefix, version=version, id=worker_id)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None


def _parse_limits(specs: Sequence[str]) -> dict[str, int | None]:
    """Return the limit of each queue. Blanks are ignored, and so are repeated queues."""
    limits: dict[str, int | None] = {}
    for spec in filter(None, map(str.strip, specs)):
        name, limit = _parse_limit(spec)
        limits.setdefault(name, limit)
    if not limits:
        raise typer.BadParameter(f"no queue: use -q NAME or {QUEUES_VARIABLE}")
    return limits


def _parse_limit(spec: str) -> tuple[str, int | None]:
    name, equals, text = spec.rpartition("=")
    if not equals:
        return parse_queue(spec), None
    if not text.isdecimal() or int(text) < 1:
        raise typer.BadParameter(f'queue "{spec}": the limit must be a number of at least 1')
    return parse_queue(name), int(text)
