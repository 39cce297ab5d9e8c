"""The stack that the loop watchdog shows."""

import asyncio
import sys
from collections.abc import Callable

import pytest
import uvloop

from awa_py.worker.loop_watchdog import _format_stack


def blocking_call() -> str:
    return _format_stack(sys._getframe())


async def handler() -> str:
    return blocking_call()


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_stack_starts_inside_the_loop(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        lines = runner.run(handler()).splitlines()
    functions = [line.rpartition(" in ")[2] for line in lines if line.startswith("  File")]
    assert functions == ["handler", "blocking_call"]


def test_stack_outside_of_a_loop_is_complete() -> None:
    assert "test_stack_outside_of_a_loop_is_complete" in blocking_call()
