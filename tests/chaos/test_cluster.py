"""Clusters stay within their limits while workers start, stop and are killed."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import awa_py as awa
from awa_py.store.queues import pause_queue, set_queue
from tests.processes import Process, Processes, eventually, processes

pytestmark = pytest.mark.chaos

MAX_WORKERS = 10
SHORT_SHARES = {"AWA_SHARE_STALENESS": "2s", "AWA_REPORT_INTERVAL": "500ms"}


@pytest.fixture
def started(database_url: str, tmp_path: Path) -> Iterator[Processes]:
    """Processes with default settings, but for the staleness of shares."""
    with processes(tmp_path, database_url, SHORT_SHARES) as started:
        yield started


class Samples:
    """The number of jobs that run at once, sampled."""

    def __init__(self, client: awa.App) -> None:
        self._client = client
        self.most = 0
        self.taken = 0
        self.by_worker: dict[int, int] = {}

    @asynccontextmanager
    async def taking(self) -> AsyncIterator[None]:
        sampling = asyncio.create_task(self._take_forever())
        try:
            yield
        finally:
            sampling.cancel()

    async def _take_forever(self) -> None:
        while True:
            rows = await self._client.pool.fetch(
                "SELECT w.pid, count(*) AS jobs FROM awa.running r LEFT JOIN awa.workers w ON w.id = r.worker_id "
                "GROUP BY w.pid"
            )
            self.by_worker = {row["pid"]: row["jobs"] for row in rows}
            self.most = max(self.most, sum(self.by_worker.values()))
            self.taken += 1
            await asyncio.sleep(0.01)


async def slots(client: awa.App) -> dict[int, int]:
    rows = await client.pool.fetch("SELECT pid, slots FROM awa.slots JOIN awa.workers ON id = worker_id")
    return {row["pid"]: row["slots"] for row in rows}


async def completed(client: awa.App) -> int:
    found: int = await client.pool.fetchval("SELECT count(*) FROM awa.completed")
    return found


async def set_max_workers(client: awa.App, max_workers: int) -> None:
    async with client.session() as session:
        await set_queue(session, "default", {"max_workers": max_workers})


async def pause(client: awa.App, *, paused: bool) -> None:
    async with client.session() as session:
        await pause_queue(session, "default", paused=paused)


async def enqueue_ticks(client: awa.App, number: int) -> None:
    await client.enqueue_many([client.new("tick") for _ in range(number)])


async def all_completed(client: awa.App, number: int) -> None:
    async def are_completed() -> bool:
        return await completed(client) >= number

    await eventually("all jobs are completed", are_completed, 120)


async def test_max_workers_is_split_and_kept_when_a_worker_is_killed(  # F5 F6
    client: awa.App, started: Processes
) -> None:
    await set_max_workers(client, MAX_WORKERS)
    workers = [started.worker() for _ in range(3)]

    async def are_split(*wanted: int) -> bool:
        return sorted((await slots(client)).values(), reverse=True) == list(wanted)

    await eventually("10 slots are split 4/3/3", lambda: are_split(4, 3, 3))
    await enqueue_ticks(client, 8_000)
    samples = Samples(client)
    async with samples.taking():
        await eventually("all three run jobs at once", lambda: len(samples.by_worker) == 3)
        killed_pid = max(await slots(client), key=(await slots(client)).__getitem__)
        next(worker for worker in workers if worker.pid == killed_pid).send(signal.SIGKILL)
        killed_at = time.monotonic()
        await eventually("the slots of the killed worker are given to the others: 5/5", lambda: are_split(5, 5))
        print(f"5/5 after {time.monotonic() - killed_at:.1f} s")
        survivors = set(await slots(client))
        await eventually(
            "both run five at once",
            lambda: samples.by_worker == dict.fromkeys(survivors, 5) or not samples.by_worker,
            60,
        )
        await all_completed(client, 8_000)
    assert samples.most == MAX_WORKERS
    assert samples.taken > 50


async def test_rolling_deploy_does_not_exceed_max_workers(client: awa.App, started: Processes) -> None:  # F5
    await set_max_workers(client, 4)
    old = [started.worker() for _ in range(2)]
    await enqueue_ticks(client, 4_000)
    samples = Samples(client)
    async with samples.taking():
        await eventually("the old workers run jobs", lambda: len(samples.by_worker) == 2)
        new: list[Process] = []
        for worker in old:
            new.append(started.worker())
            await eventually("the new worker runs jobs too", lambda: new[-1].pid in samples.by_worker)
            worker.send(signal.SIGTERM)
            assert worker.wait() == 0
        await all_completed(client, 4_000)
    assert samples.most == 4
    assert await client.pool.fetchval("SELECT max(attempt) FROM awa.completed") == 1


async def test_pause_reaches_every_process_within_two_seconds(client: awa.App, started: Processes) -> None:  # F5
    for _ in range(2):
        started.worker()
    await enqueue_ticks(client, 20_000)

    async def many_completed() -> bool:
        return await completed(client) > 500

    async def none_run() -> bool:
        return not await client.pool.fetchval("SELECT count(*) FROM awa.running")

    await eventually("they run jobs", many_completed)
    await pause(client, paused=True)
    paused_at = await client.pool.fetchval("SELECT now()")
    await eventually("running jobs finish", none_run)
    assert await completed(client) < 20_000
    started_after = "SELECT coalesce(max(attempted_at) - $1, '0') FROM awa.completed"
    assert (await client.pool.fetchval(started_after, paused_at)).total_seconds() < 2
    assert await client.pool.fetchval("SELECT count(*) FROM awa.jobs WHERE attempt > 1 OR state = 'failed'") == 0
    assert await client.pool.fetchval("SELECT count(*) FROM awa.ready WHERE attempt > 0") == 0
    await pause(client, paused=False)
    await all_completed(client, 20_000)
