"""A producer in this process, a worker beside it, and the time between them.

Handlers return the moment at which they began, on the clock that all processes of a machine share: the moments come
back with the jobs, and nothing else has to be said while it is measured.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from awa_py.errors import AwaError

from .beside import bench_worker, until_ready
from .costs import Costs, Server
from .jobs import app, stamp
from .meter import metered
from .scratch import scratch_schema
from .workload import Bench, settle

WARM_UP = 30
LOOK_EVERY_S = 0.02
PATIENCE_S = 60.0
BEGAN = """
    SELECT (args ->> 'n')::int AS n, result::text::bigint AS began_ns,
           extract(epoch FROM attempted_at - run_at)::float8 * 1000 AS late_ms
    FROM awa.completed WHERE kind = 'stamp' AND (args ->> 'n')::int >= 0
"""


@dataclass(slots=True)
class Sender:
    """Enqueues, and remembers when each enqueue returned."""

    returned_ns: dict[int, int] = field(default_factory=dict)
    count: int = 0  # of those that are under way: how far it has come

    async def send(self, n: int) -> None:
        await stamp.enqueue(n=n)
        self.returned_ns[n] = time.monotonic_ns()
        self.count += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """All jobs, delivered."""

    returned_ns: dict[int, int]
    began_ns: dict[int, int]
    late_ms: list[float]  # from run_at to the start of the attempt, both by the database's clock
    costs: Costs
    server: Server

    def latencies_ms(self) -> list[float]:
        """From the enqueue's return to the handler's start. Negative where the worker was faster than the answer."""
        return [(self.began_ns[n] - returned) / 1e6 for n, returned in self.returned_ns.items()]


async def deliver(bench: Bench, label: str, jobs: int, produce: Callable[[Sender], Awaitable[None]]) -> Delivery:
    """Lets the producer send, once everything is warm and quiet, and waits until all is done."""
    sender = Sender()
    async with scratch_schema(bench.url) as database, metered(database) as meter:
        app.connect_to(database)

        async def warm_up(count: int) -> None:
            for _ in range(count):
                await stamp.enqueue(n=-1)
            await meter.drained(every_s=LOOK_EVERY_S, patience_s=PATIENCE_S)

        with bench_worker(database) as worker:
            async with app:
                with bench.progress.bar("warm up"):
                    await until_ready(worker, meter.connection, database)
                    await settle(warm_up, jobs=WARM_UP)
                    await meter.start(worker.pid)
                with bench.progress.bar(label, jobs, lambda: sender.count):
                    await produce(sender)
                    await meter.drained(every_s=LOOK_EVERY_S, patience_s=PATIENCE_S)
                await meter.stop()
                worker.check()
        costs = await meter.costs(jobs)
        rows = await meter.connection.fetch(database.schema.qualify(BEGAN))
    if len(rows) != jobs:
        raise AwaError(f"of {jobs} jobs {len(rows)} completed: this run has no figure")
    return Delivery(
        returned_ns=sender.returned_ns,
        began_ns={row["n"]: row["began_ns"] for row in rows},
        late_ms=[row["late_ms"] for row in rows],
        costs=costs,
        server=meter.server,
    )
