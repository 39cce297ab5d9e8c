"""awa route …"""

from datetime import datetime
from typing import Annotated

import typer
from rich.text import Text

from awa_py.errors import UnknownRoute
from awa_py.model.routes import check_pattern
from awa_py.store import routes as store
from awa_py.store.routes import RouteRow

from .decorators import command
from .environment import Environment
from .output import Row, ago, print_json, print_table, say
from .parsing import JsonOption, as_usage_error, parse_queue

app = typer.Typer(help="Choose the queue of jobs that name none, by kind.", no_args_is_help=True)

Pattern = Annotated[
    str,
    typer.Argument(
        metavar="PATTERN", parser=as_usage_error(check_pattern), help="A kind, or a prefix with a star: 'gh_*'."
    ),
]


@command(app, "awa route list", name="list")
async def list_routes(env: Environment, as_json: JsonOption = False) -> None:
    """List the routes. They take precedence over those in an app's code."""
    async with env.session() as session:
        routes = await store.list_routes(session)
        now = await session.now()
    if as_json:
        print_json(routes)
        return
    print_table([_row(route, now) for route in routes], empty="no routes")


@command(app, "awa route set 'gh_*' gh", name="set")
async def set_route(
    env: Environment,
    pattern: Pattern,
    queue: Annotated[str, typer.Argument(metavar="QUEUE", parser=parse_queue, help="Queue for these jobs.")],
) -> None:
    """Add or change a route. It applies to jobs that are enqueued from now on."""
    async with env.session() as session:
        await store.set_route(session, pattern, queue)
    say(f'{_jobs_of(pattern)} go to queue "{queue}", unless they name a queue')


@command(app, "awa route delete 'gh_*'")
async def delete(env: Environment, pattern: Pattern) -> None:
    """Delete a route. Jobs stay in their queues."""
    async with env.session() as session:
        if not await store.delete_route(session, pattern):
            raise UnknownRoute(f'there is no route "{pattern}": see `awa route list`')
    say(f'route "{pattern}" is deleted')


def _row(route: RouteRow, now: datetime) -> Row:
    return {"pattern": route.pattern, "queue": route.queue, "changed": Text(ago(route.updated_at, now))}


def _jobs_of(pattern: str) -> str:
    if pattern == "*":
        return "all jobs"
    return f'jobs whose kind begins with "{pattern[:-1]}"' if pattern.endswith("*") else f'jobs of kind "{pattern}"'
