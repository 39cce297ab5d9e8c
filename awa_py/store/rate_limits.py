"""Named rate limits: token buckets of the whole cluster."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from awa_py.errors import UnknownRateLimit
from awa_py.model.rates import MAX_COUNT, Rate
from awa_py.store.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimitRow:
    """A rate limit and its tokens now. Below zero, tokens are promised to waiting callers."""

    name: str
    count: int
    period: timedelta
    token_s: float
    burst: int
    tokens: float
    refilled_at: datetime
    created_at: datetime
    updated_at: datetime
    wait_s: float  # of a caller that asks for one token now

    @property
    def rate(self) -> Rate:
        return Rate(self.count, self.period)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenGrant:
    """The result for callers that asked for tokens together."""

    waits_s: Sequence[float]  # of the callers that were served, in their order
    next_s: float  # the wait of the first caller that was not served
    fastest_s: float  # the wait of a caller that finds the bucket full


async def take_tokens(session: Session, name: str, *, tokens: int, callers: int, max_wait_s: float) -> TokenGrant:
    """Take `tokens` for each caller, in order, as long as the wait is at most `max_wait_s`."""
    row = await session.fetchrow("take_tokens", name, tokens, callers, max_wait_s)
    if row is None:
        raise unknown_rate_limit(name)
    return TokenGrant(**dict(row))


async def set_rate_limit(session: Session, name: str, rate: Rate, burst: int | None = None) -> None:
    """Create a rate limit with a full bucket, or change one. `burst` defaults to the tokens of one second."""
    default_burst = max(1, int(rate.per_second))
    await session.fetch(
        "set_rate_limit", name, rate.count, rate.period, min(MAX_COUNT, default_burst if burst is None else burst)
    )


async def drain_rate_limit(session: Session, name: str, period: timedelta | None = None) -> None:
    """Take all tokens, and those that are added within `period`."""
    if await session.fetchval("drain_rate_limit", name, period) is None:
        raise unknown_rate_limit(name)


async def delete_rate_limit(session: Session, name: str) -> None:
    if await session.fetchval("delete_rate_limit", name) is None:
        raise unknown_rate_limit(name)


async def list_rate_limits(session: Session, name: str | None = None) -> list[RateLimitRow]:
    return [RateLimitRow(**dict(row)) for row in await session.fetch("list_rate_limits", name)]


def unknown_rate_limit(name: str) -> UnknownRateLimit:
    return UnknownRateLimit(f'there is no rate limit "{name}": `awa rate set {shlex.quote(name)} 5000/h` creates one')
