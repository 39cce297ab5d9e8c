"""DBOS with synchronous workflows, which were faster here than asynchronous ones.

Jobs of steps are called from a few threads: its queue (8 to 32 workflows at once, a poll every 20 to 100 ms),
start_workflow and more threads were not faster. A workflow that waits for a message occupies a thread.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from dbos import DBOS, DBOSClient, SetWorkflowID  # type: ignore[import-not-found]

from tests.bench.durable.contender import Contender, Send
from tests.bench.durable.kit import main

CALLING_THREADS = 4
EXECUTOR_THREADS = 16
POOL = 20
POLL_INTERVAL_S = 0.01  # of the results of children; the default is 1 s


class Dbos(Contender):
    UNFINISHED = "SELECT EXISTS (SELECT FROM dbos.workflow_status WHERE status IN ('ENQUEUED', 'PENDING'))"
    WAITING = "SELECT count(*) FROM dbos.operation_outputs WHERE function_name = 'DBOS.sleep'"  # the timeout of recv()
    HAS_QUEUE = False

    def __init__(self, url: str) -> None:
        super().__init__(url)
        stopwatch = self.stopwatch

        @DBOS.step()  # type: ignore[untyped-decorator]
        def add(number: int) -> int:
            return number + 1

        @DBOS.workflow()  # type: ignore[untyped-decorator]
        def steps(count: int) -> int:
            stopwatch.start()
            number = 0
            for _ in range(count):
                number = add(number)
            stopwatch.end()
            return number

        @DBOS.workflow()  # type: ignore[untyped-decorator]
        def child(number: int) -> int:
            return number

        @DBOS.workflow()  # type: ignore[untyped-decorator]
        def parent(children: int) -> int:
            handles = [DBOS.start_workflow(child, number) for number in range(children)]
            return sum(handle.get_result(polling_interval_sec=POLL_INTERVAL_S) for handle in handles)

        @DBOS.workflow()  # type: ignore[untyped-decorator]
        def waiting() -> Any:
            return DBOS.recv("go", timeout_seconds=600)

        self._steps, self._parent, self._waiting = steps, parent, waiting

    def _configure(self, threads: int) -> None:
        DBOS(
            config={
                "name": "bench",
                "system_database_url": self.url,
                "sys_db_pool_size": POOL,
                "max_executor_threads": threads,
                "run_admin_server": False,
                "log_level": "ERROR",
            }
        )

    async def install(self) -> None:
        async with self.worker("", 0):  # its start creates the schema
            pass

    @asynccontextmanager
    async def worker(self, workload: str, jobs: int) -> AsyncIterator[None]:
        self._configure(EXECUTOR_THREADS + (jobs if workload == "signals" else 0))
        await asyncio.to_thread(DBOS.launch)
        try:
            yield
        finally:
            await asyncio.to_thread(DBOS.destroy)

    async def enqueue_steps(self, jobs: int, steps: int) -> None:
        def run() -> None:
            with ThreadPoolExecutor(CALLING_THREADS) as threads:
                list(threads.map(self._steps, [steps] * jobs))

        await asyncio.to_thread(run)

    async def enqueue_parent(self, children: int) -> None:
        await asyncio.to_thread(self._parent, children)

    async def enqueue_waiting(self, jobs: int) -> None:
        def start() -> None:
            for number in range(jobs):
                with SetWorkflowID(f"waiting {number}"):
                    DBOS.start_workflow(self._waiting)

        await asyncio.to_thread(start)

    @asynccontextmanager
    async def sender(self) -> AsyncIterator[Send]:
        client = DBOSClient(system_database_url=self.url, system_database_pool_size=1)
        with ThreadPoolExecutor(1) as thread:

            async def send(number: int) -> None:
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(thread, client.send, f"waiting {number}", "x", "go")

            yield send
        client.destroy()


if __name__ == "__main__":
    os.environ["DBOS__APPVERSION"] = "bench"
    main(Dbos)
