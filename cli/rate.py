"""awa rate …"""

import math
from datetime import timedelta
from typing import Annotated

import typer
from rich.text import Text

from awa_py import durations
from awa_py.model.names import check_rate_limit_name
from awa_py.model.rates import MAX_COUNT, Rate
from awa_py.store import rate_limits as store
from awa_py.store.rate_limits import RateLimitRow

from .decorators import command
from .environment import Environment
from .output import Row, duration_text, print_json, print_table, say
from .parsing import JsonOption, as_usage_error, parse_duration

app = typer.Typer(help="Manage the rate limits that handlers use with ctx.rate_limit().", no_args_is_help=True)

RateLimitName = Annotated[
    str, typer.Argument(metavar="NAME", parser=as_usage_error(check_rate_limit_name), help="Name of the rate limit.")
]


@command(app, "awa rate set gh 5000/h", name="set")
async def set_rate_limit(
    env: Environment,
    name: RateLimitName,
    rate: Annotated[
        Rate,
        typer.Argument(
            metavar="RATE", parser=as_usage_error(Rate.parse), help="Tokens per period, e.g. 5000/h or 50/60s."
        ),
    ],
    burst: Annotated[
        int | None,
        typer.Option(
            min=1, max=MAX_COUNT, metavar="N", help="Maximum of unused tokens. Default: those of 1 s, at least 1."
        ),
    ] = None,
) -> None:
    """Add or change a rate limit."""
    async with env.session() as session:
        await store.set_rate_limit(session, name, rate, burst)
        (limit,) = await store.list_rate_limits(session, name)
    say(f'rate limit "{name}" is set to {limit.rate} with a burst of {limit.burst}')


@command(app, "awa rate list", name="list")
async def list_rate_limits(env: Environment, as_json: JsonOption = False) -> None:
    """List the rate limits, their tokens, and the current wait for a token."""
    async with env.session() as session:
        limits = await store.list_rate_limits(session)
    if as_json:
        print_json(limits)
    else:
        print_table([_row(limit) for limit in limits], empty="no rate limits")


@command(app, "awa rate drain gh --for 10m")
async def drain(
    env: Environment,
    name: RateLimitName,
    period: Annotated[
        timedelta | None,
        typer.Option(
            "--for", parser=parse_duration, metavar="DURATION", help="Also take the tokens of this period, from now on."
        ),
    ] = None,
) -> None:
    """Take all tokens of a rate limit, except those that handlers already wait for."""
    async with env.session() as session:
        await store.drain_rate_limit(session, name, period)
    say(f'rate limit "{name}" is drained' + ("" if period is None else f" for {duration_text(period)}"))


@command(app, "awa rate delete gh")
async def delete(env: Environment, name: RateLimitName) -> None:
    """Delete a rate limit. Jobs that use it will fail."""
    async with env.session() as session:
        await store.delete_rate_limit(session, name)
    say(f'rate limit "{name}" is deleted')


def _row(limit: RateLimitRow) -> Row:
    return {
        "name": limit.name,
        "rate": Text(str(limit.rate)),
        "burst": limit.burst,
        "tokens": max(0, math.floor(limit.tokens)),
        "wait": Text(durations.text(timedelta(seconds=round(limit.wait_s, 3 if limit.wait_s < 1 else 0)))),
    }
