"""Wait for tokens of named rate limits.

A token is booked before it is available: the database answers how long to wait for it, and the caller goes on after
that wait without asking again. So the rate is exact even if a caller wakes up late. The callers of a process that wait
for the same limit form one line: they request tokens together and are served in order.
"""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice, takewhile
from typing import TypeAlias

from awa_py import durations
from awa_py.background import cancel_and_wait, wait_for_event
from awa_py.db.errors import CONNECTION_LOST
from awa_py.db.reconnecting import ReconnectingConnection
from awa_py.db.schema import Schema
from awa_py.errors import ConfigError
from awa_py.model.outcomes import RateLimited
from awa_py.store.rate_limits import TokenGrant, take_tokens
from awa_py.store.session import Session
from awa_py.text import describe

logger = logging.getLogger("awa.rate_limiter")

MAX_HORIZON_S = 60.0  # a caller with a max_wait books tokens at most this far ahead
# Callers without a max_wait book tokens this far ahead, which is what a worker that dies leaves unused. They book
# further ahead only if other callers, who do so, would be served before them each time.
DEFAULT_HORIZON_S = 10.0
MIN_RETRY_S = 1.0  # between two requests
MAX_RETRY_S = 60.0
MAX_CALLERS = 1000  # in a request

# Takes (name, tokens of each caller, callers, max_wait_s).
RequestTokens: TypeAlias = Callable[[str, int, int, float], Awaitable[TokenGrant]]


@dataclass(eq=False, slots=True)
class _Caller:
    tokens: int
    # When the tokens are available, on this process's clock.
    available_at: "asyncio.Future[float]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class RateLimiter:
    """Waits for tokens on behalf of the handlers of this process."""

    def __init__(self, request: RequestTokens) -> None:
        self.loop = asyncio.get_running_loop()
        self._request = request
        self._lines: dict[str, deque[_Caller]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()

    async def take(self, name: str, tokens: int = 1, max_wait: timedelta | None = None) -> None:
        """Return when the tokens are available, or raise RateLimited if that takes longer than `max_wait`."""
        if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
            raise ValueError(f"rate limit {name!r}: tokens is a number from 1, not {tokens!r}")
        if max_wait is None:
            available_at = await self._take_in_line(name, tokens)
        else:
            available_at = await self._take_alone(name, tokens, max_wait.total_seconds())
        await _sleep_until(available_at)

    def stop_retrying(self) -> None:
        """Raise RateLimited from now on for callers that would have to request again."""
        self._stopping.set()

    async def close(self) -> None:
        """Stop all requests, and cancel the callers that wait."""
        await cancel_and_wait(*self._tasks)
        for line in self._lines.values():  # of tasks that were cancelled before they started
            _cancel_all(line)
        self._lines.clear()

    async def _take_alone(self, name: str, tokens: int, max_wait_s: float) -> float:
        """Request tokens outside the line: the callers in front would delay the answer beyond `max_wait_s`."""
        deadline = time.monotonic() + max_wait_s
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            horizon_s = min(left_s, MAX_HORIZON_S)
            grant = await self._request(name, tokens, 1, horizon_s)
            if grant.waits_s:
                return time.monotonic() + grant.waits_s[0]
            if grant.fastest_s > min(max_wait_s, MAX_HORIZON_S):
                raise _impossible(name, tokens, grant.fastest_s, min(max_wait_s, MAX_HORIZON_S))
            retry_s = _retry_s(grant.next_s - horizon_s)
            if grant.next_s > left_s or await self._stopped_within(retry_s):
                raise RateLimited(name, retry_s)

    async def _take_in_line(self, name: str, tokens: int) -> float:
        caller = _Caller(tokens)
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = deque()
            task = asyncio.create_task(self._serve(name, line))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        line.append(caller)
        return await caller.available_at

    async def _serve(self, name: str, line: deque[_Caller]) -> None:
        """Request tokens for the callers in line until it is empty."""
        horizon_s = DEFAULT_HORIZON_S
        try:
            while batch := _next_batch(line):
                tokens = batch[0].tokens
                try:
                    grant = await self._request(name, tokens, len(batch), horizon_s)
                    now = time.monotonic()
                    for wait_s in grant.waits_s:
                        _answer(line.popleft(), now + wait_s)
                    refused = batch[len(grant.waits_s) :]
                    if refused and grant.fastest_s > MAX_HORIZON_S:
                        raise _impossible(name, tokens, grant.fastest_s, MAX_HORIZON_S)
                    requested_s, horizon_s = horizon_s, _next_horizon_s(horizon_s, grant)
                    short_s = grant.next_s - max(requested_s, horizon_s)
                    if refused and short_s > 0 and await self._stopped_within(retry_s := _retry_s(short_s)):
                        raise RateLimited(name, retry_s)
                except Exception as error:  # all errors go to the callers
                    for caller in batch:
                        if line and line[0] is caller:
                            line.popleft()
                            _answer(caller, error)
        finally:
            del self._lines[name]
            _cancel_all(line)  # not empty only if this task was cancelled

    async def _stopped_within(self, seconds: float) -> bool:
        """Wait, plus a random delay so that no process always requests right before another. True means: stop."""
        return await wait_for_event(self._stopping, seconds + random.random() * MIN_RETRY_S)


def request_tokens_over(connection: ReconnectingConnection, schema: Schema) -> RequestTokens:
    """Return a function that requests tokens over one connection, one request at a time.

    It tries again while the database cannot be reached.
    """
    lock = asyncio.Lock()

    async def request(name: str, tokens: int, callers: int, max_wait_s: float) -> TokenGrant:
        async with lock:
            while True:
                session = Session(await connection.get(), schema)
                try:
                    return await take_tokens(session, name, tokens=tokens, callers=callers, max_wait_s=max_wait_s)
                except CONNECTION_LOST as error:
                    logger.debug('rate limit "%s": requesting tokens again: %s', name, describe(error))
                    connection.drop()

    return request


def _next_batch(line: deque[_Caller]) -> list[_Caller]:
    """Return the first callers, as long as they want the same number of tokens. Drop callers that were cancelled."""
    while line and line[0].available_at.done():
        line.popleft()
    if not line:
        return []
    tokens = line[0].tokens
    alike = takewhile(lambda caller: caller.tokens == tokens and not caller.available_at.done(), line)
    return list(islice(alike, MAX_CALLERS))


def _next_horizon_s(horizon_s: float, grant: TokenGrant) -> float:
    """Return how far ahead a line books next: further if not even its first caller was served.

    Lines alone book at most DEFAULT_HORIZON_S ahead, and each is served in turn. If the next token is much further
    away, it was booked by callers with a max_wait. They reach up to MAX_HORIZON_S ahead, and new ones keep coming: no
    caller in line would ever be served. So the line reaches further than all of them.
    """
    if grant.waits_s:
        return DEFAULT_HORIZON_S
    furthest_s = grant.fastest_s + MAX_HORIZON_S + DEFAULT_HORIZON_S
    if grant.next_s > horizon_s + DEFAULT_HORIZON_S or grant.fastest_s > horizon_s:
        return furthest_s
    return min(furthest_s, horizon_s + MIN_RETRY_S)  # another line was faster: reach further with each refusal


def _cancel_all(line: deque[_Caller]) -> None:
    for caller in line:
        caller.available_at.cancel()


def _answer(caller: _Caller, answer: float | Exception) -> None:
    if caller.available_at.done():  # it was cancelled, and its tokens are lost
        return
    if isinstance(answer, Exception):
        caller.available_at.set_exception(answer)
    else:
        caller.available_at.set_result(answer)


async def _sleep_until(moment: float) -> None:
    while True:  # the event loop's clock may be a little ahead
        left_s = moment - time.monotonic()
        if left_s <= 0:
            return
        await asyncio.sleep(left_s)


def _retry_s(seconds: float) -> float:
    return min(MAX_RETRY_S, max(MIN_RETRY_S, seconds))


def _impossible(name: str, tokens: int, fastest_s: float, max_wait_s: float) -> ConfigError:
    fastest, max_wait = (durations.text(timedelta(seconds=round(s, 3))) for s in (fastest_s, max_wait_s))
    return ConfigError(
        f'rate limit "{name}": {tokens} tokens at once take {fastest} even if the bucket is full, so they are never '
        f"available within {max_wait}: ask for fewer, or set a larger burst"
    )
