"""Tokens of named rate limits, as one process asks for them.

A token is taken before it is there: the answer says how long to wait for it, and whoever has waited goes on without
asking again. So the rate is exact however late somebody wakes up. Those of a process who wait for the same limit stand
in one line, ask together, and are served in their order.
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

logger = logging.getLogger("awa.limiter")

LONGEST_S = 60.0  # between an ask with a max_wait and the token that it is promised, and between two asks
SOONEST_S = 1.0  # between two asks
# So far ahead tokens are taken by those who would wait for ever: what a worker that dies leaves unused. It is more only
# where others, who reach further, would be before them each time.
AHEAD_S = 10.0
MOST = 1000  # callers who ask together

# Asks for (name, tokens each, callers, patience in seconds).
Ask: TypeAlias = Callable[[str, int, int, float], Awaitable[TokenGrant]]


@dataclass(eq=False, slots=True)
class _Caller:
    tokens: int
    # When the tokens are there, on this process's clock.
    due: "asyncio.Future[float]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class RateLimiter:
    """Waits for tokens on behalf of whoever needs them in this process."""

    def __init__(self, ask: Ask) -> None:
        self.loop = asyncio.get_running_loop()
        self._ask = ask
        self._lines: dict[str, deque[_Caller]] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._leaving = asyncio.Event()

    async def take(self, name: str, tokens: int = 1, max_wait: timedelta | None = None) -> None:
        """Returns once the tokens are there; raises RateLimited where that would take longer than `max_wait`."""
        if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
            raise ValueError(f"rate limit {name!r}: tokens is a number from 1 on, not {tokens!r}")
        if max_wait is None:
            due = await self._stand_in_line(name, tokens)
        else:
            due = await self._ask_alone(name, tokens, max_wait.total_seconds())
        await _until(due)

    def give_up(self) -> None:
        """From now on nobody waits who was told to come again: they get RateLimited."""
        self._leaving.set()

    async def close(self) -> None:
        """Ends all asking; whoever stands in line is cancelled."""
        await cancel_and_wait(*self._serving)
        for line in self._lines.values():  # of those who were cancelled before they began
            _end(line)
        self._lines.clear()

    async def _ask_alone(self, name: str, tokens: int, max_wait_s: float) -> float:
        """Not in the line, since those in front would make it wait for its answer."""
        gives_up_at = time.monotonic() + max_wait_s
        while True:
            left_s = max(0.0, gives_up_at - time.monotonic())
            patience_s = min(left_s, LONGEST_S)
            taken = await self._ask(name, tokens, 1, patience_s)
            if taken.waits_s:
                return time.monotonic() + taken.waits_s[0]
            if taken.fastest_s > min(max_wait_s, LONGEST_S):
                raise _never(name, tokens, taken.fastest_s, min(max_wait_s, LONGEST_S))
            again_s = _again_s(taken.next_s - patience_s)
            if taken.next_s > left_s or await self._left_within(again_s):
                raise RateLimited(name, again_s)

    async def _stand_in_line(self, name: str, tokens: int) -> float:
        caller = _Caller(tokens)
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = deque()
            serving = asyncio.create_task(self._serve(name, line))
            self._serving.add(serving)
            serving.add_done_callback(self._serving.discard)
        line.append(caller)
        return await caller.due

    async def _serve(self, name: str, line: deque[_Caller]) -> None:
        """Asks for those in line until nobody is left."""
        patience_s = AHEAD_S
        try:
            while batch := _first_of(line):
                tokens = batch[0].tokens
                try:
                    taken = await self._ask(name, tokens, len(batch), patience_s)
                    now = time.monotonic()
                    for wait_s in taken.waits_s:
                        _tell(line.popleft(), now + wait_s)
                    refused = batch[len(taken.waits_s) :]
                    if refused and taken.fastest_s > LONGEST_S:
                        raise _never(name, tokens, taken.fastest_s, LONGEST_S)
                    asked_s, patience_s = patience_s, _next_patience_s(patience_s, taken)
                    short_s = taken.next_s - max(asked_s, patience_s)
                    if refused and short_s > 0 and await self._left_within(again_s := _again_s(short_s)):
                        raise RateLimited(name, again_s)
                except Exception as error:  # whatever it is, it is the callers'
                    for caller in batch:
                        if line and line[0] is caller:
                            line.popleft()
                            _tell(caller, error)
        finally:
            del self._lines[name]
            _end(line)  # only where this task was cancelled is somebody left

    async def _left_within(self, seconds: float) -> bool:
        """Waits, and a little more, so that no process always asks right before another. True: it is time to leave."""
        return await wait_for_event(self._leaving, seconds + random.random() * SOONEST_S)


def request_tokens_over(link: ReconnectingConnection, schema: Schema) -> Ask:
    """Asks over one connection, one at a time, for as long as it takes to reach the database."""
    turn = asyncio.Lock()

    async def ask(name: str, tokens: int, callers: int, patience_s: float) -> TokenGrant:
        async with turn:
            while True:
                session = Session(await link.get(), schema)
                try:
                    return await take_tokens(session, name, tokens=tokens, callers=callers, max_wait_s=patience_s)
                except CONNECTION_LOST as error:
                    logger.debug('rate limit "%s": asking again: %s', name, describe(error))
                    link.drop()

    return ask


def _first_of(line: deque[_Caller]) -> list[_Caller]:
    """Those in front who want the same number of tokens. Whoever was cancelled meanwhile leaves the line."""
    while line and line[0].due.done():
        line.popleft()
    if not line:
        return []
    return list(islice(takewhile(lambda caller: caller.tokens == line[0].tokens and not caller.due.done(), line), MOST))


def _next_patience_s(patience_s: float, taken: TokenGrant) -> float:
    """How far ahead a line asks next. Further, once not even the first of it was served.

    Lines alone leave no more than AHEAD_S promised, and each has its turn. Where the next token is much further away,
    it was taken by those with a max_wait, who reach up to LONGEST_S ahead and come and go: nobody in line would ever be
    served. So it reaches further than all of them.
    """
    if taken.waits_s:
        return AHEAD_S
    furthest_s = taken.fastest_s + LONGEST_S + AHEAD_S
    if taken.next_s > patience_s + AHEAD_S or taken.fastest_s > patience_s:
        return furthest_s
    return min(furthest_s, patience_s + SOONEST_S)  # somebody was faster: the longer it goes on, the less so


def _end(line: deque[_Caller]) -> None:
    for caller in line:
        caller.due.cancel()


def _tell(caller: _Caller, answer: float | Exception) -> None:
    if caller.due.done():  # what was taken for it is lost
        return
    if isinstance(answer, Exception):
        caller.due.set_exception(answer)
    else:
        caller.due.set_result(answer)


async def _until(due: float) -> None:
    while True:  # an event loop's own clock may be a little ahead
        left_s = due - time.monotonic()
        if left_s <= 0:
            return
        await asyncio.sleep(left_s)


def _again_s(seconds: float) -> float:
    return min(LONGEST_S, max(SOONEST_S, seconds))


def _never(name: str, tokens: int, fastest_s: float, patience_s: float) -> ConfigError:
    fastest, patience = (durations.text(timedelta(seconds=round(s, 3))) for s in (fastest_s, patience_s))
    return ConfigError(
        f'rate limit "{name}": {tokens} tokens at once take {fastest} even where the bucket is full, and never come '
        f"within {patience}: ask for fewer, or set a larger burst"
    )
