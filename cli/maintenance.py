"""awa maintenance"""

import asyncio
import dataclasses
import os
from contextlib import suppress
from typing import Annotated

import typer

from awa_py.app import App
from awa_py.maintenance.one_shot import Maintenance
from awa_py.maintenance.reports import TaskReport
from awa_py.maintenance.tasks import one_shot_tasks
from awa_py.observability.metrics import Metrics
from awa_py.settings import Settings
from awa_py.systemd.notifier import Notifier
from awa_py.systemd.reload import Reload
from awa_py.systemd.service import Service

from .environment import Environment, checked
from .metrics import LOOPBACK, MetricsHost, MetricsPort, serve_metrics
from .output import print_json, say
from .parsing import CheckOption, JsonOption

TASKS = tuple(one_shot_tasks(Settings()))


def parse_task(text: str) -> str:
    if text not in TASKS:
        raise typer.BadParameter(f'unknown task "{text}": use one of {", ".join(TASKS)}')
    return text


def maintenance(
    env: Environment,
    spec: Annotated[
        str | None,
        typer.Argument(metavar="APP", envvar="AWA_APP", help="App whose schedules to write, as module:attribute."),
    ] = None,
    once: Annotated[
        str | None,
        typer.Option(
            parser=parse_task,
            metavar="TASK",
            help=f"Run this task once and exit: {', '.join(TASKS)}.",
            autocompletion=lambda incomplete: [name for name in TASKS if name.startswith(incomplete)],
        ),
    ] = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = LOOPBACK,
    as_json: JsonOption = False,
    check: CheckOption = False,
) -> None:
    """Run the leader's tasks: promote, rescue, fire schedules, clean up.

    One process at a time is the leader; the others stand by. Workers take part in the election, too.
    """
    if check:
        env.check(spec)
        return
    app = env.load(spec)
    if once is None:
        reload = Reload()
        notifier = Notifier.from_environ(os.environ)
        env.run(_run_candidate(env, app, metrics_host, metrics_port, notifier, reload), fast=True)
        reload.restart_if_requested()
        return
    report = env.run(_run_once(env, app, once))
    if as_json:
        print_json({"task": once, "changed": report.rows_changed, **dataclasses.asdict(report)})
    else:
        say(f"{once}: {report}")


async def _run_candidate(
    env: Environment, app: App, host: str, port: int | None, notifier: Notifier, reload: Reload
) -> None:
    """Take part in the election until a signal arrives, then resign."""
    metrics = Metrics(timing=port is not None)
    await env.connect(app)
    candidate = app.candidate(metrics=metrics)
    running = asyncio.create_task(candidate.run())
    service = Service(
        candidate,
        stop=running.cancel,
        summary=lambda: "leader" if candidate.is_leader else "standing by",
        notifier=notifier,
        reload=reload,
    )
    async with service:
        with serve_metrics(metrics, candidate, host=host, port=port), suppress(asyncio.CancelledError):
            await running


async def _run_once(env: Environment, app: App, name: str) -> TaskReport:
    async with checked(await env.connect(app)) as client:
        return await Maintenance(one_shot_tasks(app.settings, app.registry.schedules), client.session).run(name)
