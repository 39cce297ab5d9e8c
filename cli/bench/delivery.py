"""Measure the time from the enqueue in this process to the handler's start in a worker process.

Handlers return their start time, on the clock that all processes of a machine share. The times are read from the
completed jobs, so nothing else is communicated during the measurement.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from awa_py.errors import AwaError

from .bench_worker import start_bench_worker, wait_until_ready
from .cost_recorder import recording_costs
from .costs import Costs, ServerSettings
from .jobs import app, timestamp
from .temporary_schema import temporary_schema
from .workload import Bench, warm_up_sessions

WARM_UP_JOBS = 30
POLL_INTERVAL_S = 0.02
TIMEOUT_S = 60.0
SELECT_STARTED = """
    SELECT (args ->> 'n')::int AS n, result::text::bigint AS started_ns,
           extract(epoch FROM attempted_at - run_at)::float8 * 1000 AS late_ms
    FROM awa.completed WHERE kind = 'timestamp' AND (args ->> 'n')::int >= 0
"""


@dataclass(slots=True)
class Sender:
    """Enqueue jobs, and record when each enqueue returned."""

    returned_ns: dict[int, int] = field(default_factory=dict)
    count: int = 0

    async def send(self, n: int) -> None:
        await timestamp.enqueue(n=n)
        self.returned_ns[n] = time.monotonic_ns()
        self.count += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The times of all jobs, after all have completed."""

    returned_ns: dict[int, int]
    started_ns: dict[int, int]
    late_ms: list[float]  # from run_at to the start of the attempt, both on the database's clock
    costs: Costs
    server: ServerSettings

    def latencies_ms(self) -> list[float]:
        """Return the times from the enqueue's return to the handler's start.

        A latency is negative if the worker started before the reply to the enqueue arrived.
        """
        return [(self.started_ns[n] - returned) / 1e6 for n, returned in self.returned_ns.items()]


async def deliver(bench: Bench, label: str, jobs: int, produce: Callable[[Sender], Awaitable[None]]) -> Delivery:
    """Warm up, let `produce` send the jobs, and wait until all have completed."""
    sender = Sender()
    async with temporary_schema(bench.url) as database, recording_costs(database) as recorder:
        app.connect_to(database)

        async def warm_up(count: int) -> None:
            for _ in range(count):
                await timestamp.enqueue(n=-1)
            await recorder.wait_until_empty(poll_interval_s=POLL_INTERVAL_S, timeout_s=TIMEOUT_S)

        with start_bench_worker(database) as worker:
            async with app:
                with bench.progress.bar("warm up"):
                    await wait_until_ready(worker, recorder.connection, database)
                    await warm_up_sessions(warm_up, jobs=WARM_UP_JOBS)
                    await recorder.start(worker.pid)
                with bench.progress.bar(label, jobs, lambda: sender.count):
                    await produce(sender)
                    await recorder.wait_until_empty(poll_interval_s=POLL_INTERVAL_S, timeout_s=TIMEOUT_S)
                await recorder.stop()
                worker.check()
        costs = await recorder.costs(jobs)
        rows = await recorder.connection.fetch(database.schema.qualify(SELECT_STARTED))
    if len(rows) != jobs:
        raise AwaError(f"only {len(rows)} of {jobs} jobs completed: this run has no result")
    return Delivery(
        returned_ns=sender.returned_ns,
        started_ns={row["n"]: row["started_ns"] for row in rows},
        late_ms=[row["late_ms"] for row in rows],
        costs=costs,
        server=recorder.server,
    )
