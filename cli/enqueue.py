"""awa enqueue"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from awa_py.app import App
from awa_py.declaring import is_declared
from awa_py.errors import UnknownKind
from awa_py.model.job import MAX_CONCURRENCY, Job, NewJob
from awa_py.model.options import Unique
from awa_py.store.session import Session

from .environment import Environment, checked
from .job_details import as_columns
from .output import print_json, say
from .parsing import JsonOption, parse_duration, parse_object, parse_queue, parse_time

MAX_JOBS = 1_000_000
UNTIL_ENDED = "yes"


def parse_unique(text: str) -> Any:
    """Parse a period, or `yes` for "until the job has ended"."""
    return Unique() if text == UNTIL_ENDED else Unique(period=parse_duration(text))


def enqueue(
    env: Environment,
    kind: Annotated[str, typer.Argument(metavar="KIND", help="Kind of the job: the name of its handler.")],
    args: Annotated[
        dict | None,  # type: ignore[type-arg]
        typer.Argument(
            metavar="JSON", parser=parse_object, help="Arguments of the job, as an object; - reads standard input."
        ),
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option(
            "--queue",
            "-q",
            parser=parse_queue,
            metavar="NAME",
            help="Queue of the job. Default: as declared, else that of a route, else 'default'.",
        ),
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option(min=1, max=4, metavar="N", help="Priority, from 1 (first) to 4. Default: as declared, else 2."),
    ] = None,
    delay: Annotated[
        timedelta | None, typer.Option(parser=parse_duration, metavar="DURATION", help="Run it after this time.")
    ] = None,
    at: Annotated[
        datetime | None,
        typer.Option(parser=parse_time, metavar="TIME", help="Run it at this time, e.g. 2026-01-31T09:00+01:00."),
    ] = None,
    max_attempts: Annotated[
        int | None,
        typer.Option(min=1, max=32767, metavar="N", help="Maximum number of attempts. Default: as declared, else 25."),
    ] = None,
    timeout: Annotated[
        timedelta | None,
        typer.Option(parser=parse_duration, metavar="DURATION", help="Time limit of an attempt. Default: as declared."),
    ] = None,
    deadline: Annotated[
        datetime | None,
        typer.Option(parser=parse_time, metavar="TIME", help="Fail the job if it has not completed by this time."),
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", "-t", metavar="TAG", help="Tag of the job; repeatable.")
    ] = None,
    meta: Annotated[
        dict | None,  # type: ignore[type-arg]
        typer.Option(parser=parse_object, metavar="JSON", help="Metadata, as an object."),
    ] = None,
    unique: Annotated[
        Any,
        typer.Option(
            parser=parse_unique,
            metavar="DURATION|yes",
            help="Allow only one job with this kind and arguments: for this time, or with yes until it has ended.",
        ),
    ] = None,
    unique_key: Annotated[str | None, typer.Option(metavar="KEY", help="Allow only one job with this key.")] = None,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Run at most --key-limit jobs with this key at once; {argument} is replaced by its value.",
        ),
    ] = None,
    key_limit: Annotated[
        int | None, typer.Option(min=1, max=MAX_CONCURRENCY, metavar="N", help="Limit of --key. Default: 1.")
    ] = None,
    ordered: Annotated[
        bool, typer.Option("--ordered", help="Run jobs with the same key one at a time, in order of their ids.")
    ] = False,
    count: Annotated[int, typer.Option("--count", "-n", metavar="N", min=1, max=MAX_JOBS, help="Number of jobs.")] = 1,
    app: Annotated[
        str | None,
        typer.Option(metavar="APP", envvar="AWA_APP", help="Check the arguments against the handler of this app."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Enqueue a job and print its id.

    Options that are not given are as the job's code declares them: see `awa kinds show KIND`.
    """
    if at is not None and delay is not None:
        raise typer.BadParameter("use either --at or --delay")
    if unique_key is not None:
        unique = Unique(key=unique_key, period=None if unique is None else unique.period)
    if key is None and (ordered or key_limit is not None):
        raise typer.BadParameter(f"{'--ordered' if ordered else '--key-limit'} requires --key")
    if ordered and (key_limit or 1) > 1:
        raise typer.BadParameter(f"--ordered runs one job at a time: --key-limit cannot be {key_limit}")
    options = {
        "queue": queue,
        "priority": priority,
        "delay": delay,
        "run_at": at,
        "max_attempts": max_attempts,
        "timeout": timeout,
        "deadline": deadline,
        "tags": tag,
        "metadata": meta,
        "unique": unique,
        "concurrency_key": key,
        "concurrency_limit": key_limit,
        "ordered": ordered or None,
    }
    loaded = env.load(app)
    if app is not None and loaded.registry.get(kind) is None:
        raise UnknownKind(f'{app} has no job "{kind}"; it has {", ".join(loaded.registry.kinds) or "none"}')
    new = loaded.new(kind, args, **{name: value for name, value in options.items() if value is not None})
    jobs = env.run(_enqueue(env, loaded, [new] * count))
    _show(jobs, as_json=as_json, many=count > 1)


async def _enqueue(env: Environment, app: App, new: list[NewJob]) -> Sequence[Job]:
    async with checked(await env.connect(app)) as opened:
        jobs = await opened.enqueue_many(new)
        if not new[0].spec.is_complete:
            async with opened.session() as session:
                await warn_if_undeclared(session, new[0].kind)
        return jobs


async def warn_if_undeclared(session: Session, kind: str) -> None:
    """Warn on standard error if no app has declared the kind: it may be misspelt."""
    if not await is_declared(session, kind):
        typer.echo(f'awa: no worker has declared the kind "{kind}" yet: its jobs wait for one that does', err=True)


def _show(jobs: Sequence[Job], *, as_json: bool, many: bool) -> None:
    for job_id in dict.fromkeys(job.id for job in jobs if not job.is_new):
        typer.echo(f"awa: job {job_id} already holds this unique key", err=True)
    if as_json:
        shown = [as_columns(job) | {"is_new": job.is_new} for job in jobs]
        print_json(shown if many else shown[0])
        return
    for job in jobs:
        say(str(job.id))
