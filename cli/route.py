"""awa route …"""

from datetime import datetime
from typing import Annotated

import typer
from rich.text import Text

from awa_py.errors import UnknownRoute
from awa_py.model.routes import check_pattern
from awa_py.store import routes as store
from awa_py.store.routes import RouteRow

from .environment import Environment, command
from .output import Row, ago, print_json, print_table, say
from .parsing import JsonOption, as_usage_error, parse_queue

app = typer.Typer(help="Send jobs that name no queue to one, by their kind.", no_args_is_help=True)

Pattern = Annotated[
    str,
    typer.Argument(
        metavar="PATTERN", parser=as_usage_error(check_pattern), help="A kind, or how kinds begin and a star: 'gh_*'."
    ),
]


@command(app, "awa route list", name="list")
async def list_routes(env: Environment, as_json: JsonOption = False) -> None:
    """List the routes that operators set. Those in an app's code count after them."""
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
    queue: Annotated[str, typer.Argument(metavar="QUEUE", parser=parse_queue, help="The queue they go to.")],
) -> None:
    """Add or change a route. It counts for jobs that are enqueued from now on."""
    async with env.session() as session:
        await store.set_route(session, pattern, queue)
    say(f'a job without a queue goes to "{queue}"{_where(pattern)}')


@command(app, "awa route delete 'gh_*'")
async def delete(env: Environment, pattern: Pattern) -> None:
    """Delete a route. Jobs stay where they are."""
    async with env.session() as session:
        if not await store.delete_route(session, pattern):
            raise UnknownRoute(f'there is no route "{pattern}": `awa route list` shows those that are')
    say(f'route "{pattern}" is deleted')


def _row(route: RouteRow, now: datetime) -> Row:
    return {"pattern": route.pattern, "queue": route.queue, "changed": Text(ago(route.updated_at, now))}


def _where(pattern: str) -> str:
    if pattern == "*":
        return ", whatever its kind"
    return (
        f' where its kind begins with "{pattern[:-1]}"' if pattern.endswith("*") else f' where its kind is "{pattern}"'
    )
