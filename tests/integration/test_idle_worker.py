"""What an idle worker costs: statements, CPU time and memory."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.processes import Process, eventually, processes
from tests.proxy import CountingProxy, counting_proxy

pytestmark = pytest.mark.integration

MEASURED_S = 8.0
MAX_STATEMENTS_PER_S = 2.5
EXTRA_STATEMENTS = 2  # a periodic statement may fall into the interval once more than its rate says
MAX_CPU_SHARE = 0.01
MAX_RESIDENT_MIB = 60


@dataclass
class MeasuredWorker:
    """A worker process and its traffic with the database."""

    process: Process
    wire: CountingProxy

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
        assert self.wire.total <= MAX_STATEMENTS_PER_S * took_s + EXTRA_STATEMENTS
        assert share < MAX_CPU_SHARE
        assert resident < MAX_RESIDENT_MIB

    def _used_s(self) -> float:
        times = psutil.Process(self.process.pid).cpu_times()
        return times.user + times.system


async def test_idle_worker_is_cheap_whether_it_leads_or_not(database_url: str, tmp_path: Path) -> None:
    async with counting_proxy(database_url) as (url, wire), counting_proxy(database_url) as (other_url, other_wire):
        with processes(tmp_path, url, {}) as started:
            leader = MeasuredWorker(started.worker(), wire)
            await eventually("a worker leads", lambda: "elected as the leader, epoch 1" in leader.process.output)
            follower = MeasuredWorker(started.worker(env={"AWA_DATABASE_URL": other_url}), other_wire)
            # By then both have finished the work of their start.
            await eventually("the leader has run its tasks", lambda: wire.count("leader", "mark_unserved_jobs") > 0)
            await eventually("the other worker is a candidate", lambda: other_wire.count("leader", "try_lead") > 2)
            await eventually("it is subscribed to wake-ups", lambda: other_wire.count("claims", "listen_for_jobs") > 0)
            workers = (leader, follower)
            for worker in workers:
                worker.begin()
            await asyncio.sleep(MEASURED_S)
            for worker in workers:
                worker.check()
            assert wire.count("leader", "get_next_fire") > 0
            assert other_wire.count("leader", "get_next_fire") == 0
            assert other_wire.count("leader", "try_lead") > 0
