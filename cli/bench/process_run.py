"""Measure the processes of `awa worker` on a full queue, from the first job's start until all outcomes are durable."""

from collections.abc import Callable

from awa_py.app import App
from awa_py.model.job import NewJob

from .bench_worker import start_bench_worker, wait_until_ready
from .cost_recorder import recording_costs
from .temporary_schema import hold_queue
from .worker_run import POLL_INTERVAL_S, TIMEOUT_S, RunResult, check_completed, fill_queue, pinned_if
from .workload import Bench

# The rates of the parts are those of the starts, so the last third does not include the last outcomes.
STARTS = """
    SELECT extract(epoch FROM $1 - min(attempted_at))::float8 AS seconds,
           ARRAY(SELECT extract(epoch FROM max(attempted_at) - min(attempted_at))::float8
                 FROM (SELECT attempted_at, ntile(3) OVER (ORDER BY attempted_at) AS third
                       FROM awa.completed WHERE kind <> 'filler') AS start
                 GROUP BY third ORDER BY third) AS thirds
    FROM awa.completed WHERE kind <> 'filler'
"""


class ProcessRun:
    """One measurement of worker processes, which are connected and idle when the jobs become available."""

    def __init__(self, bench: Bench, app: App, *, jobs: int, processes: int, concurrency: int | None) -> None:
        self._bench = bench
        self._app = app
        self._jobs = jobs
        self._processes = processes
        self._concurrency = concurrency

    async def measure(
        self, label: str, new: Callable[[int], NewJob], *, pinned: bool, argument_bytes: int
    ) -> RunResult:
        """Enqueue and vacuum while the queue is paused, start the processes, and resume the queue."""
        database = self._app.database
        await hold_queue(database, held=True)
        await fill_queue(self._bench, self._app, new, jobs=self._jobs, argument_bytes=argument_bytes)
        async with recording_costs(database) as recorder:
            connection = recorder.connection
            with start_bench_worker(database, processes=self._processes, concurrency=self._concurrency) as process:
                with self._bench.progress.bar("start"):
                    await wait_until_ready(process, connection, database, processes=self._processes)
                async with pinned_if(pinned, database):
                    await recorder.start(process.pid)
                    with self._bench.progress.bar(label):
                        await hold_queue(database, held=False)
                        await recorder.wait_until_empty(poll_interval_s=POLL_INTERVAL_S, timeout_s=TIMEOUT_S)
                    ended = await connection.fetchval("SELECT clock_timestamp()")
                    await recorder.stop()
                process.check()
            costs = await recorder.costs(self._jobs)
            await check_completed(self._app, recorder, self._jobs)
            row = await connection.fetchrow(database.schema.qualify(STARTS), ended)
            assert row is not None
            thirds = [round(self._jobs / 3 / seconds, 1) if seconds else None for seconds in row["thirds"]]
            return RunResult(row["seconds"], thirds, costs, recorder.server)
