"""End or freeze the process at a chosen point: before or after a statement of the store, or in the code of a handler.

AWA_TEST_POINT names the point, e.g. `before record_checkpoints` or `in the step`, and AWA_TEST_ACTION what happens
there. A process without these variables runs undisturbed.
"""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any

from awa_py.store.session import Session
from tests.chaos.proxy import CLAIMS

EXIT_CODE = 77  # of a process that ended at its point
STATEMENT_METHODS = ("fetch", "fetchrow")


class CrashPoint:
    """The point at which this process ends or freezes, once."""

    def __init__(self) -> None:
        self.name = os.environ.get("AWA_TEST_POINT")
        self.reached: Counter[str] = Counter()  # how often each point was
        self._is_armed = "AWA_TEST_ARMED" in os.environ  # for a process without a handler that calls `arm`
        self._hooks: dict[str, Callable[[], Awaitable[object]]] = {}
        self._claiming = asyncio.Lock()
        for method in STATEMENT_METHODS if self.name else ():
            setattr(Session, method, self._watch(getattr(Session, method)))

    def arm(self) -> None:
        """Let statements count from here on: the point is at the next one of its name."""
        self._is_armed = True

    def before(self, statement: str, hook: Callable[[], Awaitable[object]]) -> None:
        """Call the hook once before a statement, in the process that has a crash point."""
        if self.name is not None:
            self._hooks[f"before {statement}"] = hook

    def reach(self, name: str) -> None:
        """End or freeze the process if this is its point."""
        self.reached[name] += 1
        if name != self.name:
            return
        self.name = None
        if os.environ["AWA_TEST_ACTION"] == "freeze":
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            os._exit(EXIT_CODE)

    def _watch(self, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def run_statement(session: Session, name: str, *values: object) -> Any:
            await self._reach_statement(f"before {name}")
            if self._is_armed and self.name == f"after {name}":
                await self._claiming.acquire()  # or this process could claim the same job again before it ends
            async with self._claiming if name in CLAIMS else nullcontext():
                answer = await method(session, name, *values)
            await self._reach_statement(f"after {name}")
            return answer

        return run_statement

    async def _reach_statement(self, name: str) -> None:
        if hook := self._hooks.pop(name, None):
            await hook()
        if self._is_armed or name != self.name:
            self.reach(name)
