"""awa enqueue"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from awa_py.app import App
from awa_py.errors import UnknownKind
from awa_py.model.job import MAX_CONCURRENCY, Job
from awa_py.model.options import Unique

from .environment import Environment, checked
from .job import as_columns
from .output import print_json, say
from .parsing import JsonOption, parse_duration, parse_moment, parse_object, parse_queue

MOST = 1_000_000
UNTIL_ENDED = "yes"


def parse_unique(text: str) -> Any:
    """A period, or `yes`: until the job has ended."""
    return Unique() if text == UNTIL_ENDED else Unique(period=parse_duration(text))


def enqueue(
    env: Environment,
    kind: Annotated[str, typer.Argument(metavar="KIND", help="The job's kind: the name of its handler.")],
    args: Annotated[
        dict | None,  # type: ignore[type-arg]
        typer.Argument(metavar="JSON", parser=parse_object, help="Its arguments, an object; - reads standard input."),
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option(
            "--queue", "-q", parser=parse_queue, metavar="NAME", help="Its queue; else a route's, or default."
        ),
    ] = None,
    priority: Annotated[
        int | None, typer.Option(min=1, max=4, metavar="N", help="1 is first; the default is 2.")
    ] = None,
    delay: Annotated[
        timedelta | None, typer.Option(parser=parse_duration, metavar="DURATION", help="Run it that much later.")
    ] = None,
    at: Annotated[
        datetime | None, typer.Option(parser=parse_moment, metavar="TIME", help="Run it then: 2026-01-31T09:00+01:00.")
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option(min=1, max=32767, metavar="N", help="How often it is tried.")
    ] = None,
    timeout: Annotated[
        timedelta | None, typer.Option(parser=parse_duration, metavar="DURATION", help="How long an attempt may take.")
    ] = None,
    deadline: Annotated[
        datetime | None,
        typer.Option(parser=parse_moment, metavar="TIME", help="When it fails if it has not completed."),
    ] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", "-t", metavar="TAG", help="A tag; may be repeated.")] = None,
    meta: Annotated[
        dict | None,  # type: ignore[type-arg]
        typer.Option(parser=parse_object, metavar="JSON", help="Metadata, an object."),
    ] = None,
    unique: Annotated[
        Any,
        typer.Option(
            parser=parse_unique,
            metavar="DURATION|yes",
            help="Only one by kind and arguments: for that long, or (yes) until it has ended.",
        ),
    ] = None,
    unique_key: Annotated[str | None, typer.Option(metavar="KEY", help="Only one by this key.")] = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="At most --key-limit jobs of this key run at once; {argument} is filled in."),
    ] = None,
    key_limit: Annotated[
        int | None, typer.Option(min=1, max=MAX_CONCURRENCY, metavar="N", help="How many; the default is 1.")
    ] = None,
    ordered: Annotated[
        bool, typer.Option("--ordered", help="Jobs of the key run one by one, in the order of their ids.")
    ] = False,
    count: Annotated[int, typer.Option("--count", "-n", metavar="N", min=1, max=MOST, help="How many of it.")] = 1,
    app: Annotated[
        str | None,
        typer.Option(metavar="APP", envvar="AWA_APP", help="Check the arguments against this app's handler."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Enqueue a job, and print its id."""
    if at is not None and delay is not None:
        raise typer.BadParameter("use either --at or --delay")
    if unique_key is not None:
        unique = Unique(key=unique_key, period=None if unique is None else unique.period)
    if key is None and (ordered or key_limit is not None):
        raise typer.BadParameter(f"{'--ordered' if ordered else '--key-limit'} goes with --key")
    if ordered and (key_limit or 1) > 1:
        raise typer.BadParameter(f"--ordered runs one at a time: not with --key-limit {key_limit}")
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
    found = env.load(app)
    if app is not None and found.registry.get(kind) is None:
        raise UnknownKind(f'{app} has no job "{kind}"; it has {", ".join(found.registry.kinds) or "none"}')
    new = found.new(kind, args, **{name: value for name, value in options.items() if value is not None})
    jobs = env.run(_enqueue(env, found, [new] * count))
    _show(jobs, as_json=as_json, many=count > 1)


async def _enqueue(env: Environment, app: App, new: list[Any]) -> Sequence[Job]:
    async with checked(await env.connect(app)) as client:
        return await client.enqueue_many(new)


def _show(jobs: Sequence[Job], *, as_json: bool, many: bool) -> None:
    for job_id in dict.fromkeys(job.id for job in jobs if not job.is_new):
        typer.echo(f"awa: job {job_id} already holds this unique key", err=True)
    if as_json:
        shown = [as_columns(job) | {"is_new": job.is_new} for job in jobs]
        print_json(shown if many else shown[0])
        return
    for job in jobs:
        say(str(job.id))
