"""What a workload costs: time, CPU of the worker and the server, WAL, transactions."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
CLOSE_TIMEOUT_S = 5.0
OTHERS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""
TRANSACTIONS = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"


class Costs:
    """The costs since the start of the measurement."""

    def __init__(self, connection: Any, postmaster: int) -> None:
        self._connection = connection
        self._postmaster = postmaster
        self._before: dict[str, float] = {}
        self._used: dict[str, float] = {}

    async def start(self) -> None:
        self._before = await self._read() | {"transactions": await self._transactions()}

    async def stop(self) -> None:
        now = await self._read()
        self._used = {name: value - self._before[name] for name, value in now.items()}

    async def count_transactions(self) -> None:
        """Count the transactions, after the contender has closed its connections: then they are all reported."""
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        while await self._connection.fetchval(OTHERS) and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        self._used["transactions"] = await self._transactions() - self._before["transactions"]

    def each(self, count: int) -> dict[str, float]:
        """Return the costs of one of `count` things."""
        return {f"{name}_each": value / count for name, value in self._used.items()}

    async def _read(self) -> dict[str, float]:
        wal = await self._connection.fetchval("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
        return {
            "wal_bytes": float(wal),
            "client_cpu_us": time.process_time() * 1e6,
            "server_cpu_us": server_cpu_s(self._postmaster) * 1e6,
        }

    async def _transactions(self) -> float:
        return float(await self._connection.fetchval(TRANSACTIONS))


async def start_measuring(connection: Any) -> Costs:
    """Measure from now on. The connection is the benchmark's own."""
    backend = await connection.fetchval("SELECT pg_backend_pid()")
    costs = Costs(connection, int(_stat(backend)[1]))
    await costs.start()
    return costs


def server_cpu_s(postmaster: int) -> float:
    """Return the CPU time of the server: its main process, the children that have ended, and those that live."""
    ticks = sum(int(field) for field in _stat(postmaster)[11:15])
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                stat = _stat(int(entry.name))
            except OSError:  # it has ended meanwhile
                continue
            if int(stat[1]) == postmaster:
                ticks += int(stat[11]) + int(stat[12])
    return ticks / TICKS_PER_S


def _stat(pid: int) -> list[str]:
    """Return the fields of a process after its name: its state, its parent, …"""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
