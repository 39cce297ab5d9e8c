"""A worker with nothing to do: what it asks of the database, of the processor and of the memory."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.processes import Process, eventually, processes
from tests.wire import Wire, counted

pytestmark = pytest.mark.integration

WATCHED_S = 8.0
STATEMENTS_A_SECOND = 2.5
EDGES = 2  # what comes every second or two may come once more in one stretch of time than in another
CPU_SHARE = 0.01
RESIDENT_MIB = 60


@dataclass
class Watched:
    """A process, and what it says to the database."""

    process: Process
    wire: Wire

    def begin(self) -> None:
        self.wire.statements.clear()
        self._began = time.monotonic()
        self._cpu_s = self._used_s()

    def check(self) -> None:
        took_s = time.monotonic() - self._began
        share = (self._used_s() - self._cpu_s) / took_s
        resident = psutil.Process(self.process.pid).memory_info().rss / 2**20
        print(f"{self.wire.total / took_s:.2f} statements/s, {share:.2%} of a core, {resident:.1f} MiB\n{self.wire}")
        assert self.process.running
        assert self.wire.total > 0
        assert self.wire.total <= STATEMENTS_A_SECOND * took_s + EDGES
        assert share < CPU_SHARE
        assert resident < RESIDENT_MIB

    def _used_s(self) -> float:
        times = psutil.Process(self.process.pid).cpu_times()
        return times.user + times.system


async def test_an_idle_worker_hardly_exists_whether_it_leads_or_not(database_url: str, tmp_path: Path) -> None:
    async with counted(database_url) as (url, wire), counted(database_url) as (other_url, other_wire):
        with processes(tmp_path, url, {}) as started:
            leader = Watched(started.worker(), wire)
            await eventually("somebody leads", lambda: "elected as the leader, epoch 1" in leader.process.output)
            follower = Watched(started.worker(env={"AWA_DATABASE_URL": other_url}), other_wire)
            # By then both have done what is done once, at the start.
            await eventually("the leader has swept", lambda: wire.of("leader", "Looks at a window of ready jobs") > 0)
            await eventually("the other one stands", lambda: other_wire.of("leader", "Takes the leader's lock") > 2)
            await eventually("it wants to be woken", lambda: other_wire.of("claims", "From now on") > 0)
            both = (leader, follower)
            for each in both:
                each.begin()
            await asyncio.sleep(WATCHED_S)
            for each in both:
                each.check()
            assert wire.of("leader", "How many seconds until the next schedule") > 0
            assert other_wire.of("leader", "How many seconds until the next schedule") == 0
            assert other_wire.of("leader", "Takes the leader's lock") > 0
