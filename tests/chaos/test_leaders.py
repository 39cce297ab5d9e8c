"""Leaders that resign, freeze or lose their session. There is soon one leader again, and never two."""

import signal
import socket
import time

import asyncpg
import pytest

import awa_py as awa
from awa_py.store.election import LOCK_KEY
from tests.chaos import jobs
from tests.processes import Process, Processes, eventually, metric

pytestmark = pytest.mark.chaos

SHORT_TIMEOUT = {"AWA_LEADER_TIMEOUT": "4s", "AWA_LEADER_CHECK_INTERVAL": "1s"}
HOLDERS = """
    SELECT l.pid FROM pg_locks l
    WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND (classid::bigint << 32 | objid::bigint) = $1
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


class Pair:
    """Two `awa maintenance` processes, and whether each reports that it is the leader."""

    def __init__(self, started: Processes) -> None:
        self.ports = [free_port(), free_port()]
        self.processes: list[Process] = [
            started.start("maintenance", "--metrics-port", str(port), env=SHORT_TIMEOUT) for port in self.ports
        ]

    def reports(self) -> list[float | None]:
        return [metric(port, "awa_is_leader") for port in self.ports]

    async def leader(self) -> int:
        """Return the index of the leader."""
        await eventually("one of them is the leader", lambda: self.reports().count(1.0) == 1)
        return self.reports().index(1.0)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def holders(connection: "asyncpg.Pool[asyncpg.Record]") -> list[int]:
    return [row["pid"] for row in await connection.fetch(HOLDERS, LOCK_KEY)]


async def test_leader_without_a_session_is_replaced_by_exactly_one(  # A5
    client: awa.App, awa_processes: Processes
) -> None:
    pair = Pair(awa_processes)
    await pair.leader()
    for _ in range(3):
        (backend,) = await holders(client.pool)
        epoch = await client.pool.fetchval("SELECT epoch FROM awa.leader")
        await client.pool.fetchval("SELECT pg_terminate_backend($1)", backend)
        killed = time.monotonic()
        while True:
            held, reported = await holders(client.pool), pair.reports().count(1.0)
            assert len(held) <= 1
            assert reported <= 1
            if held and held != [backend] and reported == 1:
                break
            assert time.monotonic() < killed + 10, "no new leader"
        assert await client.pool.fetchval("SELECT epoch FROM awa.leader") == epoch + 1


async def test_stopped_leader_is_replaced(client: awa.App, awa_processes: Processes) -> None:  # A6
    pair = Pair(awa_processes)
    first = await pair.leader()
    pair.processes[first].send(signal.SIGTERM)
    assert pair.processes[first].wait() == 0
    await eventually("the other process is the leader", lambda: pair.reports()[1 - first] == 1.0, 10)
    assert len(await holders(client.pool)) == 1


async def test_frozen_leader_is_replaced_and_notices(client: awa.App, awa_processes: Processes) -> None:  # A5
    pair = Pair(awa_processes)
    first = await pair.leader()
    pair.processes[first].send(signal.SIGSTOP)
    await eventually(
        "the other process is the leader", lambda: metric(pair.ports[1 - first], "awa_is_leader") == 1.0, 20
    )
    epoch = await client.pool.fetchval("SELECT epoch FROM awa.leader")
    pair.processes[first].send(signal.SIGCONT)
    await eventually("the old leader notices", lambda: "connecting again" in pair.processes[first].output)
    assert pair.reports()[first] == 0.0
    assert pair.reports()[1 - first] == 1.0
    assert await client.pool.fetchval("SELECT epoch FROM awa.leader") == epoch
    assert len(await holders(client.pool)) == 1


async def test_scheduled_jobs_run_while_leaders_change(client: awa.App, awa_processes: Processes) -> None:
    awa_processes.worker()
    awa_processes.worker()
    enqueued = await client.enqueue_many(
        [jobs.quick.options(delay=f"{n * 50}ms").new() for n in range(100)]  # due within five seconds
    )
    for job in enqueued[19::20]:
        for backend in await holders(client.pool):
            await client.pool.fetchval("SELECT pg_terminate_backend($1)", backend)
        await client.result(job.id, timeout="60s")
    rows = await client.pool.fetch("SELECT state, attempt FROM awa.jobs")
    assert [tuple(row) for row in rows] == [("completed", 1)] * 100
