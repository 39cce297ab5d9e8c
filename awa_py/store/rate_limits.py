"""Named rate limits: buckets that tokens drip into, for the whole cluster."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from awa_py.errors import UnknownRateLimit
from awa_py.model.rates import MAX_COUNT, Rate
from awa_py.store.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimitRow:
    """A rate limit, with its tokens as they are now: below zero, so many were promised before they came."""

    name: str
    count: int
    period: timedelta
    token_s: float
    burst: int
    tokens: float
    refilled_at: datetime
    created_at: datetime
    updated_at: datetime
    wait_s: float  # of somebody who wants one now

    @property
    def rate(self) -> Rate:
        return Rate(self.count, self.period)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenGrant:
    """The answer to callers who asked for tokens together."""

    waits_s: Sequence[float]  # of those who were served, in their order
    next_s: float  # what the first of the others would have to wait
    fastest_s: float  # what somebody who finds the bucket full has to wait


async def take_tokens(session: Session, name: str, *, tokens: int, callers: int, max_wait_s: float) -> TokenGrant:
    """Takes `tokens` for each caller, in their order, as far as none has to wait for longer than the patience."""
    row = await session.fetchrow("take_tokens", name, tokens, callers, max_wait_s)
    if row is None:
        raise unknown(name)
    return TokenGrant(**dict(row))


async def set_rate_limit(session: Session, name: str, rate: Rate, burst: int | None = None) -> None:
    """Makes a rate limit, its bucket full, or changes one. The bucket holds what comes in a second, unless told."""
    usual = max(1, int(rate.per_second))
    await session.fetch(
        "set_rate_limit", name, rate.count, rate.period, min(MAX_COUNT, usual if burst is None else burst)
    )


async def drain_rate_limit(session: Session, name: str, period: timedelta | None = None) -> None:
    """Takes all tokens, and with `period` those that come within that time."""
    if await session.fetchval("drain_rate_limit", name, period) is None:
        raise unknown(name)


async def delete_rate_limit(session: Session, name: str) -> None:
    if await session.fetchval("delete_rate_limit", name) is None:
        raise unknown(name)


async def list_rate_limits(session: Session, name: str | None = None) -> list[RateLimitRow]:
    return [RateLimitRow(**dict(row)) for row in await session.fetch("list_rate_limits", name)]


def unknown(name: str) -> UnknownRateLimit:
    return UnknownRateLimit(f'there is no rate limit "{name}": `awa rate set {shlex.quote(name)} 5000/h` makes one')
