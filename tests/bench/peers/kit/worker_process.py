"""The worker process: started by the producer, and stopped by closing its standard input."""

import asyncio
import json
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Self

from tests.bench.peers.kit.contender import Contender

READY_TIMEOUT_S = 30.0


async def run_worker(contender: Contender, *, expect: int = 0, held: bool = False) -> dict[str, Any] | None:
    """Print "ready", and the start times when all jobs have started; run until standard input is closed.

    With `held`, the worker starts after "ready", when a line arrives: several processes can start at the same time.
    """
    started: dict[int, int] = {}
    all_started = asyncio.Event()

    def on_start(number: int) -> None:
        now = time.monotonic_ns()
        if number >= 0:
            started[number] = now
            if len(started) == expect:
                all_started.set()

    loop = asyncio.get_running_loop()
    if held:
        print("ready", flush=True)
        await loop.run_in_executor(None, sys.stdin.readline)
    closed = loop.run_in_executor(None, sys.stdin.read)
    async with contender.worker(on_start):
        if not held:
            await asyncio.sleep(0.5)  # some workers are not connected yet when they report to be started
            print("ready", flush=True)
        finished = asyncio.ensure_future(all_started.wait())
        await asyncio.wait([finished, closed], return_when=asyncio.FIRST_COMPLETED)
        print(json.dumps(started), flush=True)
        finished.cancel()
        await closed
    return None


class WorkerProcess:
    """Run a worker process of the same contender while the context is open."""

    def __init__(self, contender: Contender, params: dict[str, Any]) -> None:
        self._params = {**asdict(contender.shape), **params}
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

    async def release(self) -> None:
        """Let a held worker start."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        await self._process.stdin.drain()

    async def starts(self, timeout_s: float) -> dict[int, int]:
        """Return the start times (monotonic, ns) of the jobs that started within the timeout."""
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
