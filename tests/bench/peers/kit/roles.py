"""The worker in a process of its own: started by the producer, told to end by closing its standard input."""

import asyncio
import json
import sys
import time
from contextlib import suppress
from typing import Any, Self

from tests.bench.peers.kit.contender import Contender

READY_TIMEOUT_S = 30.0


async def be_a_worker(contender: Contender, *, expect: int = 0) -> dict[str, Any] | None:
    """Says "ready", works until standard input ends, and says when each job started as soon as all have."""
    started: dict[int, int] = {}
    all_started = asyncio.Event()

    def on_start(number: int) -> None:
        now = time.monotonic_ns()
        if number >= 0:
            started[number] = now
            if len(started) == expect:
                all_started.set()

    loop = asyncio.get_running_loop()
    closed = loop.run_in_executor(None, sys.stdin.read)
    async with contender.worker(on_start):
        await asyncio.sleep(0.5)  # "started" often means "starting": let it connect and listen
        print("ready", flush=True)
        finished = asyncio.ensure_future(all_started.wait())
        await asyncio.wait([finished, closed], return_when=asyncio.FIRST_COMPLETED)
        print(json.dumps(started), flush=True)
        finished.cancel()
        await closed
    return None


class WorkerProcess:
    """A context in which a worker process of the same contender runs."""

    def __init__(self, contender: Contender, params: dict[str, Any]) -> None:
        self._module = type(contender).__module__
        self._params = params
        self._started: dict[int, int] | None = None

    async def __aenter__(self) -> Self:
        module = sys.modules["__main__"].__spec__
        assert module is not None
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module.name, "worker", json.dumps(self._params)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=64 * 1024 * 1024,
        )
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), READY_TIMEOUT_S)
        if line.strip() != b"ready":
            raise RuntimeError(f"the worker process did not start: {line!r}")
        return self

    async def starts(self, timeout_s: float) -> dict[int, int]:
        """When each job started (monotonic, ns); of those that did within the time."""
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        reading = asyncio.ensure_future(self._process.stdout.readline())
        done, _ = await asyncio.wait([reading], timeout=timeout_s)
        if not done:
            self._process.stdin.close()
        return {int(number): at for number, at in json.loads(await reading).items()}

    async def __aexit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), 15)
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
