"""A simulation of several workers that claim from one queue: real claimers and real statements, a simulated clock.

Each scenario is a backlog with keys and limits. After every claim the simulation records what runs. At the end the test
checks that no limit was exceeded, that every job that could run did run, and how long each key had to wait.
"""

import heapq
import math
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from awa_py.db.database import Database
from awa_py.store.claim import Claimant
from awa_py.store.finish import complete_jobs
from awa_py.store.session import Session
from awa_py.worker.claimed_job import ClaimedJob
from awa_py.worker.claiming.queue_claimer import QueueClaimer
from awa_py.worker.directives import QueueDirectives
from awa_py.worker.in_flight import InFlightJobs
from tests.clock import Clock
from tests.pages import snapshot_held
from tests.support import insert, insert_queue, insert_running, new_owner, seconds

pytestmark = pytest.mark.integration

POLL_S = 0.5
STATEMENT_S = 0.002  # every statement takes this long on the simulated clock


@dataclass
class SimulatedWorker:
    """A worker with real claim state whose handlers take simulated time."""

    session: Session
    concurrency: int
    directives: QueueDirectives
    id: UUID = field(default_factory=new_owner)
    next_poll_at: float = 0.0

    def __post_init__(self) -> None:
        self.in_flight = InFlightJobs({"default": self.concurrency}, self.concurrency)
        self.claimer = QueueClaimer("default", Claimant(self.id, ["work"]), self.in_flight, poll_s=POLL_S)
        self.claimer.apply(self.directives)
        self.in_flight.on_slot_free(self.claimer.slot_freed)

    def start(self, rows: Any, now: float) -> list[ClaimedJob]:
        jobs = [ClaimedJob(row, "default", None, now) for row in rows]
        self.in_flight.add("default", jobs)
        self.in_flight.slots("default").held += len(jobs)
        return jobs

    def finish(self, job: ClaimedJob) -> None:
        slots = self.in_flight.slots("default")
        slots.count_finished(1)
        slots.held -= 1
        self.in_flight.remove([job], {"default": 1})


class Simulation:
    """Runs workers against a queue until no job is left or the time is over."""

    def __init__(self, session: Session, clock: Clock, workers: list[SimulatedWorker], *, run_s: float) -> None:
        self._session = session
        self._clock = clock
        self._workers = workers
        self._run_s = run_s
        self._random = random.Random(0)
        self._ends: list[tuple[float, int, SimulatedWorker, ClaimedJob]] = []
        self._began_at = clock.now
        self.claims = 0
        self.started: dict[str | None, list[float]] = defaultdict(list)  # by key
        self.most_running: Counter[str | None] = Counter()
        self.most_running_together = 0

    @property
    def jobs_started(self) -> int:
        return sum(map(len, self.started.values()))

    async def run(self, *, for_s: float) -> None:
        while self._clock.now < self._began_at + for_s:
            await self._finish_due_jobs()
            for worker in self._workers:
                await self._claim(worker)
            self._clock.now = max(self._clock.now + STATEMENT_S, min(self._clock.now + POLL_S, self._next_event_at()))

    def _next_event_at(self) -> float:
        waits = [w.claimer.due_at for w in self._workers if w.claimer.wanted_jobs and w.claimer.due_at < math.inf]
        return min([*waits, *(end[0] for end in self._ends[:1])], default=math.inf)

    async def _claim(self, worker: SimulatedWorker) -> None:
        if self._clock.now >= worker.next_poll_at:
            worker.claimer.wake()
            worker.next_poll_at = self._clock.now + POLL_S
        if worker.claimer.due_at > self._clock.now or not (wanted := worker.claimer.wanted_jobs):
            return
        rows = await worker.claimer.claim(worker.session, wanted)
        self._clock.now += STATEMENT_S
        self.claims += 1
        await self._check(rows)
        for job in worker.start(rows, self._clock.now):
            ends_at = self._clock.now + self._run_s * self._random.uniform(0.5, 1.5)
            heapq.heappush(self._ends, (ends_at, job.id, worker, job))

    async def _check(self, rows: Any) -> None:
        running = await self._session.connection.fetch(
            "SELECT concurrency_key AS key, count(*) AS jobs FROM awa.running GROUP BY 1"
        )
        for row in running:
            self.most_running[row["key"]] = max(self.most_running[row["key"]], row["jobs"])
        self.most_running_together = max(self.most_running_together, sum(row["jobs"] for row in running))
        keys = await self._session.connection.fetch(
            "SELECT concurrency_key AS key FROM awa.running WHERE id = ANY ($1)", [row["id"] for row in rows]
        )
        for row in keys:
            self.started[row["key"]].append(self._clock.now - self._began_at)

    async def _finish_due_jobs(self) -> None:
        ended: dict[UUID, list[tuple[SimulatedWorker, ClaimedJob]]] = defaultdict(list)
        while self._ends and self._ends[0][0] <= self._clock.now:
            _, _, worker, job = heapq.heappop(self._ends)
            ended[worker.id].append((worker, job))
        for worker_id, jobs in ended.items():
            ids, leases = [job.id for _, job in jobs], [job.lease for _, job in jobs]
            assert await complete_jobs(self._session, worker_id, ids, leases, None, keep=False) is None
            for worker, job in jobs:
                worker.finish(job)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in ("queue_claimer", "prefetch"):
        clock.install(monkeypatch, f"awa_py.worker.claiming.{module}")
    return clock


def workers(
    session: Session, number: int, *, concurrency: int = 20, directives: QueueDirectives | None = None
) -> list[SimulatedWorker]:
    return [SimulatedWorker(session, concurrency, directives or QueueDirectives()) for _ in range(number)]


async def insert_keyed(session: Session, key: str, jobs: int, *, limit: int, **columns: Any) -> None:
    columns = {"concurrency_key": key, "concurrency_limit": limit, "ordered": False, **columns}
    await insert(session, "ready", jobs, **columns)


async def test_every_key_keeps_its_limit_and_every_job_runs(session: Session, clock: Clock) -> None:
    for n in range(40):
        await insert_keyed(session, f"k{n}", 15, limit=1 + n % 3)
    simulation = Simulation(session, clock, workers(session, 4), run_s=0.05)
    await simulation.run(for_s=10)
    assert {key: len(times) for key, times in simulation.started.items()} == {f"k{n}": 15 for n in range(40)}
    assert all(simulation.most_running[f"k{n}"] <= 1 + n % 3 for n in range(40))
    # A key with limit 1 needs 15 times 0.05 s. All keys go on at the same time.
    assert max(max(times) for times in simulation.started.values()) < 4


async def test_full_key_in_front_does_not_delay_the_others(session: Session, clock: Clock) -> None:
    await insert_running(session, concurrency_key="full", concurrency_limit=1, ordered=False)
    await insert_keyed(session, "full", 3_000, limit=1)
    for n in range(30):
        await insert_keyed(session, f"k{n}", 5, limit=2)
    simulation = Simulation(session, clock, workers(session, 2), run_s=0.02)
    await simulation.run(for_s=5)
    assert simulation.jobs_started == 150
    assert max(max(times) for times in simulation.started.values()) < 3
    assert simulation.started.get("full") is None


async def test_job_behind_the_cursor_starts_when_its_key_has_room(session: Session, clock: Clock) -> None:
    """The claims of the others leave the jobs of a slow key behind. They start as their key has room."""
    await insert_keyed(session, "slow", 3, limit=1)
    await insert_keyed(session, "fast", 3_000, limit=1_000)
    simulation = Simulation(session, clock, workers(session, 2, concurrency=100), run_s=0.1)
    await simulation.run(for_s=10)
    assert len(simulation.started["fast"]) == 3_000
    assert len(simulation.started["slow"]) == 3
    assert simulation.most_running["slow"] == 1
    assert simulation.started["slow"][-1] < 4


async def test_old_snapshot_does_not_delay_keys(session: Session, database: Database, clock: Clock) -> None:
    for n in range(20):
        await insert_keyed(session, f"k{n}", 20, limit=2)
    async with snapshot_held(database):
        simulation = Simulation(session, clock, workers(session, 3), run_s=0.05)
        await simulation.run(for_s=5)
    assert simulation.jobs_started == 400
    assert max(simulation.most_running.values()) == 2


async def test_max_workers_holds_and_is_used(session: Session, clock: Clock) -> None:
    await insert_queue(session, "default", max_workers=7)
    await insert(session, "ready", 300)
    limited = workers(session, 3, directives=QueueDirectives(slots=3, limited=True))
    simulation = Simulation(session, clock, limited, run_s=0.05)
    await simulation.run(for_s=5)
    assert simulation.jobs_started == 300
    assert simulation.most_running_together == 7
    assert max(simulation.started[None]) < 300 * 0.05 / 7 * 2  # it is used for at least half of the time


async def test_job_runs_beyond_a_share_that_nobody_uses(session: Session, clock: Clock) -> None:
    """Another worker has the whole share, but does not know the kind."""
    await insert_queue(session, "default", max_workers=1)
    await insert(session, "ready", 3)
    without_share = workers(session, 1, directives=QueueDirectives(slots=0, limited=True))
    simulation = Simulation(session, clock, without_share, run_s=0.05)
    await simulation.run(for_s=10)
    assert simulation.jobs_started == 3
    assert simulation.most_running_together == 1


async def test_empty_limited_queue_is_polled_not_hammered(session: Session, clock: Clock) -> None:
    await insert_queue(session, "default", max_workers=7)
    limited = workers(session, 1, directives=QueueDirectives(slots=7, limited=True))
    simulation = Simulation(session, clock, limited, run_s=0.05)
    await simulation.run(for_s=20)
    assert simulation.claims < 3 * 20 / POLL_S


async def test_rate_keeps_its_own_clock(session: Session, clock: Clock) -> None:
    """The rate's tokens come by the database's clock, which does not go on in the simulation: there is one token."""
    await insert_queue(session, "default", rate_jobs=1, rate_period=seconds(3600))
    await insert(session, "ready", 50)
    rated = workers(session, 3, directives=QueueDirectives(limited=True, rate=1 / 3600))
    simulation = Simulation(session, clock, rated, run_s=0.05)
    await simulation.run(for_s=5)
    assert simulation.jobs_started == 1
