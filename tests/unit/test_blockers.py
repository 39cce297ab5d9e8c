"""Where a handler blocks the event loop, as people read it."""

import asyncio
import sys
from collections.abc import Callable

import pytest
import uvloop

from awa_py.worker.loop_watchdog import _stack


def blocking_call() -> str:
    return _stack(sys._getframe())


async def handler() -> str:
    return blocking_call()


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_the_stack_begins_inside_of_the_loop(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        lines = runner.run(handler()).splitlines()
    places = [line.rpartition(" in ")[2] for line in lines if line.startswith("  File")]
    assert places == ["handler", "blocking_call"]


def test_outside_of_a_loop_it_is_whole() -> None:
    assert "test_outside_of_a_loop_it_is_whole" in blocking_call()
