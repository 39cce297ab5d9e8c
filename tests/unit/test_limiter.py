"""Those of a process who wait for tokens: one line for each limit."""  # F14

import asyncio
import time
from collections.abc import Callable

import pytest

from awa_py import ConfigError, RateLimited, UnknownRateLimit
from awa_py.rate_limiter import AHEAD_S, LONGEST_S, SOONEST_S, RateLimiter
from awa_py.store.rate_limits import TokenGrant
from tests.support import eventually, seconds

Asked = tuple[str, int, int, float]


class Clerk:
    """EnqueuedJobs as it is told, once it is let."""

    def __init__(self, answer: Callable[[int, float], TokenGrant]) -> None:
        self.answer = answer
        self.asked: list[Asked] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def __call__(self, name: str, tokens: int, callers: int, patience_s: float) -> TokenGrant:
        self.asked.append((name, tokens, callers, patience_s))
        await self.may_answer.wait()
        return self.answer(callers, patience_s)


def granted(callers: int, patience_s: float) -> TokenGrant:
    return TokenGrant(waits_s=[0.0] * callers, next_s=1.0, fastest_s=0.0)


def refused(callers: int, patience_s: float) -> TokenGrant:
    return TokenGrant(waits_s=[], next_s=1000.0, fastest_s=0.0)


async def test_those_who_come_meanwhile_ask_together_in_their_order() -> None:
    clerk = Clerk(granted)
    limiter = RateLimiter(clerk)
    order: list[int] = []

    async def caller(n: int, tokens: int) -> None:
        await limiter.take("gh", tokens)
        order.append(n)

    clerk.may_answer.clear()
    async with asyncio.TaskGroup() as callers:
        for n, tokens in enumerate((1, 1, 1, 2, 2, 1)):
            callers.create_task(caller(n, tokens))
            await asyncio.sleep(0)
        await eventually(lambda: clerk.asked)
        clerk.may_answer.set()
    assert order == [0, 1, 2, 3, 4, 5]
    assert clerk.asked[0] == ("gh", 1, 1, AHEAD_S)  # the first did not wait for the others
    assert clerk.asked[1:] == [("gh", 1, 2, AHEAD_S), ("gh", 2, 2, AHEAD_S), ("gh", 1, 1, AHEAD_S)]


async def test_each_limit_has_a_line_of_its_own() -> None:
    clerk = Clerk(refused)
    limiter = RateLimiter(clerk)
    waiting = asyncio.create_task(limiter.take("gh"))
    await eventually(lambda: clerk.asked)
    clerk.answer = granted
    await limiter.take("slack")
    assert not waiting.done()
    await limiter.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_who_is_cancelled_leaves_the_line_and_holds_up_nobody() -> None:
    clerk = Clerk(granted)
    clerk.may_answer.clear()
    limiter = RateLimiter(clerk)
    callers = [asyncio.create_task(limiter.take("gh"))]
    await eventually(lambda: clerk.asked)
    callers += [asyncio.create_task(limiter.take("gh")) for _ in range(3)]
    await asyncio.sleep(0)
    for gone in callers[:2]:  # one whose ask is under way, and one behind it
        gone.cancel()
    await asyncio.sleep(0)
    clerk.may_answer.set()
    await asyncio.gather(*callers[2:])
    assert [callers_asked for _, _, callers_asked, _ in clerk.asked] == [1, 2]


async def test_an_error_is_the_callers_and_the_next_one_asks_anew() -> None:
    def unknown(callers: int, patience_s: float) -> TokenGrant:
        raise UnknownRateLimit("there is none")

    clerk = Clerk(unknown)
    limiter = RateLimiter(clerk)
    for _ in range(2):
        with pytest.raises(UnknownRateLimit):
            await limiter.take("gh")
    clerk.answer = granted
    await limiter.take("gh")
    assert len(clerk.asked) == 3


async def test_nobody_goes_on_before_the_token_is_there() -> None:
    limiter = RateLimiter(Clerk(lambda callers, _: TokenGrant(waits_s=[0.05] * callers, next_s=1, fastest_s=0)))
    for max_wait in (None, seconds(1)):
        began = time.monotonic()
        await limiter.take("gh", max_wait=max_wait)
        assert time.monotonic() - began >= 0.05


async def test_so_many_that_they_take_long_are_asked_for_with_more_patience() -> None:
    def slow(callers: int, patience_s: float) -> TokenGrant:
        return TokenGrant(waits_s=[0.0] * callers if patience_s >= 30 else [], next_s=30, fastest_s=30)

    clerk = Clerk(slow)
    await RateLimiter(clerk).take("gh", 31)
    assert [patience_s for *_, patience_s in clerk.asked] == [AHEAD_S, 30 + LONGEST_S + AHEAD_S]
    with pytest.raises(ConfigError, match="31 tokens at once take 30s even where the bucket is full"):
        await RateLimiter(clerk).take("gh", 31, seconds(5))


async def test_a_line_reaches_further_than_those_who_take_all_that_it_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers with a max_wait, of whom there are always enough."""
    monkeypatch.setattr("awa_py.rate_limiter.SOONEST_S", 0.01)
    for max_wait_s in (AHEAD_S + 0.02, LONGEST_S):

        def taken_by_others(callers: int, patience_s: float, next_s: float = max_wait_s + 0.001) -> TokenGrant:
            return TokenGrant(waits_s=[0.0] * callers if patience_s >= next_s else [], next_s=next_s, fastest_s=0)

        clerk = Clerk(taken_by_others)
        async with asyncio.timeout(5):
            await asyncio.gather(*(RateLimiter(clerk).take("gh") for _ in range(3)))
        assert clerk.asked[0][-1] == AHEAD_S


async def test_a_line_that_is_served_in_part_reaches_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("awa_py.rate_limiter.SOONEST_S", 0.01)
    clerk = Clerk(lambda *_: TokenGrant(waits_s=[0.0], next_s=AHEAD_S + 0.01, fastest_s=0))
    limiter = RateLimiter(clerk)
    await asyncio.gather(*(limiter.take("gh") for _ in range(5)))
    assert [patience_s for *_, patience_s in clerk.asked] == [AHEAD_S] * 5


async def test_a_close_ends_those_who_have_just_come() -> None:
    """Before anybody could ask for them."""
    limiter = RateLimiter(Clerk(refused))
    caller = asyncio.create_task(limiter.take("gh"))
    await asyncio.sleep(0)
    await limiter.close()
    _, waiting = await asyncio.wait({caller}, timeout=5)
    assert not waiting
    assert caller.cancelled()


@pytest.mark.parametrize(("next_s", "max_wait_s", "again_s"), [(0.5, 0, 1), (30, 5, 25), (4000, 5, 60), (100, 90, 40)])
async def test_who_will_not_wait_hears_when_to_come_again(next_s: float, max_wait_s: float, again_s: float) -> None:
    limiter = RateLimiter(Clerk(lambda *_: TokenGrant(waits_s=[], next_s=next_s, fastest_s=0)))
    with pytest.raises(RateLimited) as raised:
        await limiter.take("gh", max_wait=seconds(max_wait_s))
    assert raised.value.retry_after.total_seconds() == pytest.approx(again_s, abs=0.5)
    assert SOONEST_S <= raised.value.retry_after.total_seconds() <= LONGEST_S
    assert raised.value.delay == raised.value.retry_after


async def test_who_gives_up_lets_those_go_who_have_no_token_in_sight() -> None:
    limiter = RateLimiter(Clerk(refused))
    callers = [asyncio.create_task(limiter.take("gh", max_wait=wait)) for wait in (None, None, seconds(7200))]
    _, waiting = await asyncio.wait(callers, timeout=0.1)
    assert len(waiting) == 3
    limiter.give_up()
    for caller in callers:
        with pytest.raises(RateLimited):
            await caller
    limiter = RateLimiter(Clerk(granted))
    limiter.give_up()
    await limiter.take("gh")  # what can be had is given


@pytest.mark.parametrize("tokens", [0, -1, True, 1.5, "1"])
async def test_what_is_no_number_of_tokens(tokens: int) -> None:
    with pytest.raises(ValueError, match="a number from 1 on"):
        await RateLimiter(Clerk(granted)).take("gh", tokens)
