"""Producers: enqueue jobs in every way, commit or roll back, and remember what they were told.

Each job has a number. A transaction also inserts its numbers into the table `orders`, as an application would write its
own rows: a job exists if and only if its order does, whatever the producer was told.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count

import asyncpg

from awa_py import NewJob
from awa_py.db.database import Database
from awa_py.db.errors import CONNECTION_LOST, CONNECTION_REFUSED
from awa_py.db.schema import Schema
from awa_py.errors import AwaError
from tests.chaos import handlers

CREATE_ORDERS = "CREATE TABLE orders (n bigint PRIMARY KEY)"
ENQUEUE = "SELECT awa.enqueue('quick', jsonb_build_object('n', $1::bigint), queue => 'default')"
TIMEOUT_S = 15.0
ROLLBACK_SHARE = 0.3
UNCERTAIN = (*CONNECTION_LOST, *CONNECTION_REFUSED, AwaError, asyncpg.PostgresError)


class Fate(StrEnum):
    """What the producer knows about an enqueue."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    DUPLICATE = "duplicate"  # another job holds the unique key
    UNKNOWN = "unknown"  # the connection was lost before the answer


@dataclass(slots=True, kw_only=True)
class Order:
    """One job that a producer wanted to enqueue."""

    n: int
    kind: str
    key: str | None = None
    in_transaction: bool = False
    began: float = field(default_factory=time.time)
    ended: float = 0.0
    fate: Fate = Fate.UNKNOWN
    job: int | None = None


class Producer:
    """Enqueues jobs until it is stopped, in one way after another."""

    def __init__(self, name: str, rng: random.Random, numbers: "count[int]", orders: list[Order]) -> None:
        self._name = name
        self._rng = rng
        self._numbers = numbers
        self._orders = orders
        self._app = handlers.app

    async def enqueue(self) -> None:
        """Enqueue some jobs in one of the ways."""
        ways: list[Callable[[list[Order]], Awaitable[None]]] = [
            *2 * [self._in_transaction, self._one],
            self._many,
            self._unique,
            self._in_sql,
        ]
        orders: list[Order] = []
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._rng.choice(ways)(orders)
        except UNCERTAIN:
            await asyncio.sleep(0.2)
        finally:
            for order in orders:
                order.ended = time.time()
            self._orders += orders

    async def _in_transaction(self, orders: list[Order]) -> None:
        """Enqueue a few jobs of any kind in the transaction of an order."""
        new = [self._new_job(orders, in_transaction=True) for _ in range(self._rng.randint(1, 4))]
        commits = self._rng.random() >= ROLLBACK_SHARE
        if not commits:  # it never asks for the commit, so it knows this in any case
            for order in orders:
                order.fate = Fate.ROLLED_BACK
        async with self._app.pool.acquire() as connection:
            transaction = connection.transaction()
            await transaction.start()
            jobs = await self._app.enqueue_many(new, connection=connection)
            numbers = [order.n for order in orders]
            await connection.execute("INSERT INTO orders SELECT unnest($1::bigint[])", numbers)
            if not commits:
                await transaction.rollback()
                return
            await transaction.commit()
        _acknowledge(orders, [job.id for job in jobs])

    async def _one(self, orders: list[Order]) -> None:
        """Enqueue one job by itself: concurrent ones are committed together."""
        job = await self._app.client.enqueue(self._new_job(orders))
        _acknowledge(orders, [job.id])

    async def _many(self, orders: list[Order]) -> None:
        new = [self._new_job(orders) for _ in range(self._rng.randint(5, 25))]
        _acknowledge(orders, [job.id for job in await self._app.enqueue_many(new)])

    async def _unique(self, orders: list[Order]) -> None:
        name = self._rng.choice("abcd")
        orders.append(Order(n=next(self._numbers), kind="only_one", key=name))
        job = await handlers.only_one.enqueue(n=orders[0].n, name=name)
        _acknowledge(orders, [job.id])
        if not job.is_new:
            orders[0].fate = Fate.DUPLICATE

    async def _in_sql(self, orders: list[Order]) -> None:
        orders.append(Order(n=next(self._numbers), kind="quick"))
        async with self._app.pool.acquire() as connection:
            job_id: int = await connection.fetchval(ENQUEUE, orders[0].n)
        _acknowledge(orders, [job_id])

    def _new_job(self, orders: list[Order], *, in_transaction: bool = False) -> NewJob:
        """Return a job of any kind, and record it. Ordered jobs are only enqueued in transactions, one by one."""
        n, rng = next(self._numbers), self._rng
        key = None
        match rng.choices(KINDS, SHARES)[0]:
            case "later":
                new = handlers.quick.options(delay=rng.uniform(0.2, 4)).new(n=n)
            case "nap":
                new = handlers.nap.new(n=n, seconds=rng.choice([0.1, 0.3, 0.6, 2, 8]))
            case "block":
                new = handlers.block.new(n=n, seconds=rng.uniform(0, 0.4))
            case "fail_first":
                new = handlers.fail_first.new(n=n, failures=rng.randint(1, 2))
            case "large":
                new = handlers.large.new(n=n, text="x" * handlers.LARGE_ARGUMENT, failures=rng.randint(0, 1))
            case "fail_always":
                new = handlers.fail_always.new(n=n)
            case "once":
                new = handlers.once.new(n=n, seconds=rng.uniform(0, 0.5))
            case "twice":
                new = handlers.twice.new(n=n, seconds=rng.uniform(0, 0.5))
            case "snooze_first":
                new = handlers.snooze_first.new(n=n)
            case "keyed":
                key = rng.choice("xyz")
                new = handlers.keyed.new(n=n, key=key, seconds=rng.uniform(0, 0.3))
            case "ordered" if in_transaction:
                key = self._name
                new = handlers.ordered.new(n=n, key=key, seconds=rng.uniform(0, 0.3))
            case "together":
                new = handlers.together.new(n=n)
            case "look":
                new = handlers.look.new(n=n)
            case _:
                new = handlers.quick.new(n=n)
        orders.append(Order(n=n, kind=new.kind, key=key, in_transaction=in_transaction))
        return new


KINDS, SHARES = zip(
    *{
        "quick": 6,
        "later": 2,
        "nap": 2,
        "block": 1,
        "fail_first": 1,
        "fail_always": 0.5,
        "large": 2,
        "once": 1,
        "twice": 1,
        "snooze_first": 0.5,
        "keyed": 2,
        "ordered": 2,
        "together": 2,
        "look": 1,
    }.items(),
    strict=True,
)


class Producers:
    """Several producers that run at the same time, in this process."""

    def __init__(self, url: str, seed: int, *, number: int = 4, pause_s: float = 0.2) -> None:
        handlers.app.connect_to(Database(url, Schema()))
        self.orders: list[Order] = []
        numbers = count(1)
        self._rngs = {f"p{n}": random.Random(f"{seed} producer {n}") for n in range(number)}
        self._producers = [Producer(name, rng, numbers, self.orders) for name, rng in self._rngs.items()]
        self._pause_s = pause_s
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await handlers.app.__aenter__()
        self._tasks = [asyncio.create_task(self._run(producer)) for producer in self._producers]

    async def stop(self) -> None:
        """Stop after the current enqueues."""
        self._stopping.set()
        await asyncio.gather(*self._tasks)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        handlers.app.pool.terminate()
        await handlers.app.__aexit__(None, None, None)

    def counts(self) -> dict[str, int]:
        return dict(Counter(order.fate.value for order in self.orders))

    async def _run(self, producer: Producer) -> None:
        while not self._stopping.is_set():
            await producer.enqueue()
            await asyncio.sleep(random.uniform(0, 2 * self._pause_s))


def _acknowledge(orders: list[Order], job_ids: list[int]) -> None:
    for order, job_id in zip(orders, job_ids, strict=True):
        order.fate, order.job = Fate.COMMITTED, job_id
