"""Callers of a process wait for tokens in one line per limit."""  # F14

import asyncio
import time
from collections.abc import Callable

import pytest

from awa_py import ConfigError, RateLimited, UnknownRateLimit
from awa_py.rate_limiter import DEFAULT_HORIZON_S, MAX_HORIZON_S, MAX_RETRY_S, MIN_RETRY_S, RateLimiter
from awa_py.store.rate_limits import TokenGrant
from tests.support import eventually, seconds

Request = tuple[str, int, int, float]  # name, tokens, callers, max_wait_s


class FakeDatabase:
    """Answers requests with `answer`, while `may_answer` is set."""

    def __init__(self, answer: Callable[[int, float], TokenGrant]) -> None:
        self.answer = answer
        self.requests: list[Request] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def __call__(self, name: str, tokens: int, callers: int, max_wait_s: float) -> TokenGrant:
        self.requests.append((name, tokens, callers, max_wait_s))
        await self.may_answer.wait()
        return self.answer(callers, max_wait_s)


def granted(callers: int, max_wait_s: float) -> TokenGrant:
    return TokenGrant(waits_s=[0.0] * callers, next_s=1.0, fastest_s=0.0)


def refused(callers: int, max_wait_s: float) -> TokenGrant:
    return TokenGrant(waits_s=[], next_s=1000.0, fastest_s=0.0)


async def test_waiting_callers_request_together_and_are_served_in_order() -> None:
    database = FakeDatabase(granted)
    limiter = RateLimiter(database)
    order: list[int] = []

    async def caller(n: int, tokens: int) -> None:
        await limiter.take("gh", tokens)
        order.append(n)

    database.may_answer.clear()
    async with asyncio.TaskGroup() as callers:
        for n, tokens in enumerate((1, 1, 1, 2, 2, 1)):
            callers.create_task(caller(n, tokens))
            await asyncio.sleep(0)
        await eventually(lambda: database.requests)
        database.may_answer.set()
    assert order == [0, 1, 2, 3, 4, 5]
    assert database.requests[0] == ("gh", 1, 1, DEFAULT_HORIZON_S)  # the first one did not wait for the others
    assert database.requests[1:] == [
        ("gh", 1, 2, DEFAULT_HORIZON_S),
        ("gh", 2, 2, DEFAULT_HORIZON_S),
        ("gh", 1, 1, DEFAULT_HORIZON_S),
    ]


async def test_each_limit_has_its_own_line() -> None:
    database = FakeDatabase(refused)
    limiter = RateLimiter(database)
    waiting = asyncio.create_task(limiter.take("gh"))
    await eventually(lambda: database.requests)
    database.answer = granted
    await limiter.take("slack")
    assert not waiting.done()
    await limiter.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_cancelled_caller_leaves_the_line_and_delays_no_other() -> None:
    database = FakeDatabase(granted)
    database.may_answer.clear()
    limiter = RateLimiter(database)
    callers = [asyncio.create_task(limiter.take("gh"))]
    await eventually(lambda: database.requests)
    callers += [asyncio.create_task(limiter.take("gh")) for _ in range(3)]
    await asyncio.sleep(0)
    for caller in callers[:2]:  # one whose request is running, and one behind it
        caller.cancel()
    await asyncio.sleep(0)
    database.may_answer.set()
    await asyncio.gather(*callers[2:])
    assert [count for _, _, count, _ in database.requests] == [1, 2]


async def test_error_goes_to_the_caller_and_the_next_caller_requests_again() -> None:
    def unknown(callers: int, max_wait_s: float) -> TokenGrant:
        raise UnknownRateLimit("unknown")

    database = FakeDatabase(unknown)
    limiter = RateLimiter(database)
    for _ in range(2):
        with pytest.raises(UnknownRateLimit):
            await limiter.take("gh")
    database.answer = granted
    await limiter.take("gh")
    assert len(database.requests) == 3


async def test_caller_waits_until_its_token_is_available() -> None:
    limiter = RateLimiter(FakeDatabase(lambda callers, _: TokenGrant(waits_s=[0.05] * callers, next_s=1, fastest_s=0)))
    for max_wait in (None, seconds(1)):
        began = time.monotonic()
        await limiter.take("gh", max_wait=max_wait)
        assert time.monotonic() - began >= 0.05


async def test_line_books_further_ahead_for_many_tokens() -> None:
    def slow(callers: int, max_wait_s: float) -> TokenGrant:
        return TokenGrant(waits_s=[0.0] * callers if max_wait_s >= 30 else [], next_s=30, fastest_s=30)

    database = FakeDatabase(slow)
    await RateLimiter(database).take("gh", 31)
    assert [max_wait_s for *_, max_wait_s in database.requests] == [
        DEFAULT_HORIZON_S,
        30 + MAX_HORIZON_S + DEFAULT_HORIZON_S,
    ]
    with pytest.raises(ConfigError, match="31 tokens at once take 30s even if the bucket is full"):
        await RateLimiter(database).take("gh", 31, seconds(5))


async def test_line_books_further_ahead_than_callers_with_a_max_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers with a max_wait keep coming, and take all tokens within it."""
    monkeypatch.setattr("awa_py.rate_limiter.MIN_RETRY_S", 0.01)
    for max_wait_s in (DEFAULT_HORIZON_S + 0.02, MAX_HORIZON_S):

        def taken_by_others(callers: int, max_wait_s: float, next_s: float = max_wait_s + 0.001) -> TokenGrant:
            return TokenGrant(waits_s=[0.0] * callers if max_wait_s >= next_s else [], next_s=next_s, fastest_s=0)

        database = FakeDatabase(taken_by_others)
        async with asyncio.timeout(5):
            await asyncio.gather(*(RateLimiter(database).take("gh") for _ in range(3)))
        assert database.requests[0][-1] == DEFAULT_HORIZON_S


async def test_line_that_is_partly_served_keeps_its_horizon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("awa_py.rate_limiter.MIN_RETRY_S", 0.01)
    database = FakeDatabase(lambda *_: TokenGrant(waits_s=[0.0], next_s=DEFAULT_HORIZON_S + 0.01, fastest_s=0))
    limiter = RateLimiter(database)
    await asyncio.gather(*(limiter.take("gh") for _ in range(5)))
    assert [max_wait_s for *_, max_wait_s in database.requests] == [DEFAULT_HORIZON_S] * 5


async def test_close_cancels_callers_that_just_arrived() -> None:
    """Their line has not requested anything yet."""
    limiter = RateLimiter(FakeDatabase(refused))
    caller = asyncio.create_task(limiter.take("gh"))
    await asyncio.sleep(0)
    await limiter.close()
    _, waiting = await asyncio.wait({caller}, timeout=5)
    assert not waiting
    assert caller.cancelled()


@pytest.mark.parametrize(("next_s", "max_wait_s", "again_s"), [(0.5, 0, 1), (30, 5, 25), (4000, 5, 60), (100, 90, 40)])
async def test_rate_limited_says_when_to_retry(next_s: float, max_wait_s: float, again_s: float) -> None:
    limiter = RateLimiter(FakeDatabase(lambda *_: TokenGrant(waits_s=[], next_s=next_s, fastest_s=0)))
    with pytest.raises(RateLimited) as raised:
        await limiter.take("gh", max_wait=seconds(max_wait_s))
    assert raised.value.retry_after.total_seconds() == pytest.approx(again_s, abs=0.5)
    assert MIN_RETRY_S <= raised.value.retry_after.total_seconds() <= MAX_RETRY_S
    assert raised.value.delay == raised.value.retry_after


async def test_stop_retrying_raises_rate_limited_for_callers_without_a_token() -> None:
    limiter = RateLimiter(FakeDatabase(refused))
    callers = [asyncio.create_task(limiter.take("gh", max_wait=wait)) for wait in (None, None, seconds(7200))]
    _, waiting = await asyncio.wait(callers, timeout=0.1)
    assert len(waiting) == 3
    limiter.stop_retrying()
    for caller in callers:
        with pytest.raises(RateLimited):
            await caller
    limiter = RateLimiter(FakeDatabase(granted))
    limiter.stop_retrying()
    await limiter.take("gh")  # available tokens are still granted


@pytest.mark.parametrize("tokens", [0, -1, True, 1.5, "1"])
async def test_invalid_number_of_tokens_is_rejected(tokens: int) -> None:
    with pytest.raises(ValueError, match="tokens is a number from 1"):
        await RateLimiter(FakeDatabase(granted)).take("gh", tokens)
