"""A cluster within its limits: workers that come, go and are killed, by default settings."""

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import awa_py as awa
from awa_py.store.queues import pause_queue, set_queue
from tests.processes import Process, Processes, eventually, processes

pytestmark = pytest.mark.chaos

JOBS = 20_000
MAX_WORKERS = 10


@pytest.fixture
def by_default(database_url: str, tmp_path: Path) -> Iterator[Processes]:
    """Processes with the settings that they have where nobody chose any."""
    with processes(tmp_path, database_url, {}) as started:
        yield started


class Samples:
    """How many jobs of the queue run, looked at again and again."""

    def __init__(self, client: awa.App) -> None:
        self._client = client
        self.most = 0
        self.taken = 0
        self.by_worker: dict[int, int] = {}

    async def take_for_ever(self) -> None:
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


async def test_max_workers_is_split_kept_and_moves_on(client: awa.App, by_default: Processes) -> None:  # F5 F6
    async with client.pool.acquire() as connection:
        await set_queue(client.session(connection), "default", {"max_workers": MAX_WORKERS})
    workers = [by_default.worker() for _ in range(3)]

    async def are_split(*wanted: int) -> bool:
        return sorted((await slots(client)).values(), reverse=True) == list(wanted)

    await eventually("10 are split 4/3/3", lambda: are_split(4, 3, 3))
    await client.enqueue_many([client.new("tick") for _ in range(JOBS)])
    samples = Samples(client)
    sampling = asyncio.create_task(samples.take_for_ever())
    try:
        await eventually("all three work at once", lambda: len(samples.by_worker) == 3)
        victim = max(await slots(client), key=(await slots(client)).__getitem__)
        next(worker for worker in workers if worker.pid == victim).send(signal.SIGKILL)
        killed_at = time.monotonic()
        await eventually("a dead worker's share has moved on: 5/5", lambda: are_split(5, 5), 15)
        moved_s = time.monotonic() - killed_at
        survivors = set(await slots(client))
        await eventually(
            "both run five at once",
            lambda: samples.by_worker == dict.fromkeys(survivors, 5) or len(samples.by_worker) == 0,
            60,
        )

        async def all_ended() -> bool:
            return bool(await client.pool.fetchval("SELECT count(*) >= $1 FROM awa.completed", JOBS))

        await eventually("everything has run", all_ended, 240)
    finally:
        sampling.cancel()
    print(f"moved on after {moved_s:.1f} s; of {samples.taken} looks, none saw more than {samples.most} running")
    assert samples.most == MAX_WORKERS
    assert samples.taken > 200


async def test_a_rolling_deploy_never_exceeds_it(client: awa.App, by_default: Processes) -> None:  # F5
    async with client.pool.acquire() as connection:
        await set_queue(client.session(connection), "default", {"max_workers": 4})
    old = [by_default.worker() for _ in range(2)]
    await client.enqueue_many([client.new("tick") for _ in range(4_000)])
    samples = Samples(client)
    sampling = asyncio.create_task(samples.take_for_ever())
    try:
        await eventually("the old ones work", lambda: len(samples.by_worker) == 2)
        new: list[Process] = []
        for worker in old:
            new.append(by_default.worker())
            await eventually("the new one works beside", lambda: new[-1].pid in samples.by_worker)
            worker.send(signal.SIGTERM)
            assert worker.wait() == 0

        async def all_ended() -> bool:
            return bool(await client.pool.fetchval("SELECT count(*) >= 4000 FROM awa.completed"))

        await eventually("everything has run", all_ended, 120)
    finally:
        sampling.cancel()
    assert samples.most == 4
    assert await client.pool.fetchval("SELECT max(attempt) FROM awa.completed") == 1


async def test_a_pause_reaches_every_process_within_two_seconds(client: awa.App, by_default: Processes) -> None:  # F5
    for _ in range(2):
        by_default.worker()
    await client.enqueue_many([client.new("tick") for _ in range(20_000)])

    async def completed() -> int:
        found: int = await client.pool.fetchval("SELECT count(*) FROM awa.completed")
        return found

    async def many() -> bool:
        return await completed() > 500

    async def none_run() -> bool:
        return not await client.pool.fetchval("SELECT count(*) FROM awa.running")

    await eventually("they work", many)
    async with client.pool.acquire() as connection:
        await pause_queue(client.session(connection), "default", paused=True)
        paused_at = await client.session(connection).now()
    await eventually("running jobs finish", none_run)
    started = "SELECT coalesce(max(attempted_at) - $1, '0') FROM awa.completed"
    assert (await client.pool.fetchval(started, paused_at)).total_seconds() < 2
    assert await client.pool.fetchval("SELECT count(*) FROM awa.jobs WHERE attempt > 1 OR state = 'failed'") == 0
    assert await client.pool.fetchval("SELECT count(*) FROM awa.ready WHERE attempt > 0") == 0
    async with client.pool.acquire() as connection:
        await pause_queue(client.session(connection), "default", paused=False)

    async def all_ended() -> bool:
        return await completed() == 20_000

    await eventually("everything has run", all_ended, 120)
