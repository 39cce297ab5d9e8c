"""Leaders that resign, lose their session, freeze. One leads, always soon, never two."""

import os
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

HOLDERS = """
    SELECT l.pid FROM pg_locks l
    WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND (classid::bigint << 32 | objid::bigint) = $1
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


class Pair:
    """Two `awa maintenance` processes, and what each believes."""

    def __init__(self, started: Processes) -> None:
        self.ports = [free_port(), free_port()]
        self.processes: list[Process] = [
            started.start("maintenance", "--metrics-port", str(port), env=default_settings()) for port in self.ports
        ]

    def beliefs(self) -> list[float | None]:
        return [metric(port, "awa_is_leader") for port in self.ports]

    async def leader(self) -> int:
        """The index of the one that leads."""
        await eventually("one of them leads", lambda: self.beliefs().count(1.0) == 1)
        return self.beliefs().index(1.0)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def default_settings() -> dict[str, str]:
    return {name: "" for name in os.environ if name.startswith("AWA_") and name.endswith("_INTERVAL")} | {
        "AWA_HEARTBEAT_INTERVAL": "",
        "AWA_HEARTBEAT_STALENESS": "",
        "AWA_HEARTBEAT_RESCUE_INTERVAL": "",
        "AWA_DEADLINE_RESCUE_INTERVAL": "",
    }


async def holders(connection: "asyncpg.Pool[asyncpg.Record]") -> list[int]:
    return [row["pid"] for row in await connection.fetch(HOLDERS, LOCK_KEY)]


async def test_a_terminated_session_is_followed_by_exactly_one_leader(  # A5
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
            held, believed = await holders(client.pool), pair.beliefs().count(1.0)
            assert len(held) <= 1
            assert believed <= 1
            if held and held != [backend] and believed == 1:
                break
            assert time.monotonic() < killed + 10, "no new leader"
        assert await client.pool.fetchval("SELECT epoch FROM awa.leader") == epoch + 1


async def test_a_stopped_leader_hands_over(client: awa.App, awa_processes: Processes) -> None:  # A6
    pair = Pair(awa_processes)
    first = await pair.leader()
    pair.processes[first].send(signal.SIGTERM)
    assert pair.processes[first].wait() == 0
    await eventually("the other one leads", lambda: pair.beliefs()[1 - first] == 1.0, 10)
    assert len(await holders(client.pool)) == 1


async def test_a_frozen_leader_is_deposed_and_finds_out(client: awa.App, awa_processes: Processes) -> None:  # A5
    pair = Pair(awa_processes)
    first = await pair.leader()
    pair.processes[first].send(signal.SIGSTOP)
    await eventually("the other one leads", lambda: metric(pair.ports[1 - first], "awa_is_leader") == 1.0, 20)
    epoch = await client.pool.fetchval("SELECT epoch FROM awa.leader")
    pair.processes[first].send(signal.SIGCONT)
    await eventually("the old one finds out", lambda: "standing again" in pair.processes[first].output)
    assert pair.beliefs()[first] == 0.0
    assert pair.beliefs()[1 - first] == 1.0
    assert await client.pool.fetchval("SELECT epoch FROM awa.leader") == epoch
    assert len(await holders(client.pool)) == 1


async def test_scheduled_jobs_run_while_leaders_come_and_go(client: awa.App, awa_processes: Processes) -> None:
    awa_processes.worker()
    awa_processes.worker()
    enqueued = await client.enqueue_many(
        [jobs.quick.options(delay=f"{n * 100}ms").new() for n in range(100)]  # ten seconds of due times
    )
    for _ in range(5):
        for backend in await holders(client.pool):
            await client.pool.fetchval("SELECT pg_terminate_backend($1)", backend)
        done = enqueued[len(enqueued) // 5 * (_ + 1) - 1]
        await client.result(done.id, timeout="60s")
    rows = await client.pool.fetch("SELECT state, attempt FROM awa.jobs")
    assert [tuple(row) for row in rows] == [("completed", 1)] * 100
