"""Correct and wrong uses of the public API, for type checkers. This file is never run.

A line that ends with an `error` comment must be reported by every type checker, with a message that contains its
text. No other line may be reported. `test_uses.py` compares them.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, assert_type

import awa_py as awa
from awa_py.connections import Connection
from awa_py.model.durable import Signal

app = awa.App()
COMMON: awa.JobOptions = {"queue": "email", "max_attempts": 3}


# Handlers: sync and async, with and without Context, with and without options.


@app.job
def resize(path: str, width: int = 640) -> dict[str, int]:
    return {path: width}


@app.job
async def send(to: str, subject: str = "hi") -> int:
    return len(to + subject)


@app.job
def resize_ctx(ctx: awa.Context, path: str) -> list[str]:
    return [path, str(ctx.attempt)]


@app.job
async def send_ctx(ctx: awa.Context, to: str) -> bool:
    return ctx.cancelled and bool(to)


@app.job(queue="images", timeout="30s")
def resize_options(path: str, *, width: int) -> float:
    return len(path) / width


@app.job(queue="email", max_attempts=5, unique=awa.Unique(by=["to"]))
async def send_options(to: str) -> str:
    return to


@app.job(kind="resize.ctx", priority=1)
def resize_ctx_options(ctx: awa.Context, path: str) -> tuple[int, str]:
    return ctx.attempt, path


@app.job(**COMMON)
async def send_ctx_options(ctx: awa.Context, to: str) -> None:
    ctx.progress(1, to)


@app.job(batch=100, linger="1s", queue="email")
async def send_batch(jobs: list[awa.BatchJob]) -> None:
    for job in jobs:
        job.complete(job.args)


@app.job(batch=10)
def resize_batch(jobs: Sequence[awa.BatchJob]) -> int:
    return len(jobs)


@app.job
def anything(payload: Any) -> None:
    print(payload)


@app.job
def keywords(**values: int) -> None:
    print(values)


@app.cron("0 9 * * *", timezone="Pacific/Auckland", name="digest")
@app.job(queue="email")
async def digest() -> None: ...


class Order:
    """A state machine."""

    @app.job
    @staticmethod
    async def start(order_id: int) -> awa.Next:
        return Order.charge.next(order_id, amount=42)

    @app.job(retries=2, timeout="30s")
    @staticmethod
    def charge(ctx: awa.Context, order_id: int, amount: int) -> awa.Next:
        print(ctx.attempt)
        return Order.ship.later("1h", order_id) if amount else Order.ship.next(order_id)

    @app.job
    @staticmethod
    async def ship(order_id: int) -> str:
        return str(order_id)


def make_next_states() -> None:
    assert_type(Order.charge.next(5, 42), awa.Next)
    assert_type(Order.ship.later("1h", order_id=5), awa.Next)
    assert_type(awa.Next("Order.ship", {"order_id": 5}, delay=3), awa.Next)
    Order.charge.next(5, amonut=42)  # error: "amonut"
    Order.charge.next(5)  # error: "amount"
    Order.ship.next("five")  # error: "int"
    Order.ship.later(5)  # error: "order_id"
    Order.ship.later([], 5)  # error: "later"
    awa.Next("Order.ship", [5])  # error: list[int]


async def start_flows() -> None:
    assert_type(awa.chain(resize.new("a.png"), send, send_ctx.partial(to="ann")), awa.Flow)
    assert_type(awa.group(send.new("ann"), awa.chain(send, send)).then(digest, if_failed="run"), awa.Flow)
    flow = awa.Flow()
    first = flow.add(send.new("ann"))
    assert_type(flow.add(resize_options, after=[first], takes={"path": first, "width": [first]}), str)
    assert_type(await app.start(flow, queue="email", tags=["a"]), awa.Job[Any])
    awa.chain(send.new(too="x"))  # error: "too"
    awa.chain(5)  # error: "chain"
    awa.group(digest).then(digest, if_failed="maybe")  # error: "if_failed"
    await app.start([send.new("ann")])  # error: "flow"
    await app.start(flow, queu="email")  # error: "queu"


async def enqueue_with_correct_arguments() -> None:
    assert_type(await resize.enqueue("a.png"), awa.Job[dict[str, int]])
    assert_type(await resize.enqueue(path="a.png", width=100), awa.Job[dict[str, int]])
    assert_type(await send.enqueue(to="ann"), awa.Job[int])
    assert_type(await resize_ctx.enqueue("a.png"), awa.Job[list[str]])
    assert_type(await send_ctx.enqueue(to="ann"), awa.Job[bool])
    assert_type(await resize_options.enqueue("a.png", width=100), awa.Job[float])
    assert_type(await send_options.enqueue(to="ann"), awa.Job[str])
    assert_type(await resize_ctx_options.enqueue("a.png"), awa.Job[tuple[int, str]])
    assert_type(await send_ctx_options.enqueue(to="ann"), awa.Job[None])
    assert_type(await send_batch.enqueue(to="ann", whatever=1), awa.Job[Any])
    assert_type(await resize_batch.enqueue(path="a.png"), awa.Job[Any])
    assert_type(await digest.enqueue(), awa.Job[None])
    assert_type(await app.result(await Order.start.enqueue(5)), Any)
    assert_type(await app.result(await Order.ship.enqueue(5)), str)
    assert_type(send.new(to="ann"), awa.NewJob)
    assert_type(await send.options(delay="10m", priority=1, unique="1h").enqueue(to="ann"), awa.Job[int])
    assert_type(await send_ctx.options(tags=["a"]).options(timeout=30).enqueue(to="ann"), awa.Job[bool])
    await anything.enqueue(payload={"any": "thing"})
    await keywords.enqueue(one=1, two=2)


async def enqueue_with_wrong_arguments() -> None:
    await resize.enqueue(too="x")  # error: "too"
    await send.enqueue(too="x")  # error: "too"
    await resize_ctx.enqueue(too="x")  # error: "too"
    await send_ctx.enqueue(too="x")  # error: "too"
    await resize_options.enqueue(too="x")  # error: "too"
    await send_options.enqueue(too="x")  # error: "too"
    await resize_ctx_options.enqueue(too="x")  # error: "too"
    await send_ctx_options.enqueue(too="x")  # error: "too"
    await digest.enqueue(too="x")  # error: "too"
    await send.options(queue="email").enqueue(too="x")  # error: "too"
    await send_ctx_options.options(queue="email").enqueue(too="x")  # error: "too"
    send.new(too="x")  # error: "too"
    send_ctx.new(too="x")  # error: "too"
    resize_options.new("a.png", too="x")  # error: "too"
    await send.enqueue()  # error: "to"
    await resize_ctx.enqueue()  # error: "path"
    await resize_options.enqueue("a.png")  # error: "width"
    await send_options.enqueue(to=1)  # error: "str"
    await send_ctx_options.enqueue(1)  # error: "str"
    await resize.enqueue("a.png", "wide")  # error: "int"
    resize_ctx.new(path=None)  # error: "str"
    await keywords.enqueue(one="one")  # error: "int"
    await send_ctx.enqueue(awa.Context, "ann")  # error: argument


async def call_the_function() -> None:
    assert_type(resize("a.png"), dict[str, int])
    assert_type(await send("ann"), int)
    assert_type(await send_batch([]), None)
    assert_type(resize_batch([]), int)
    resize(too="x")  # error: "too"
    await send(1)  # error: "str"
    resize_batch([1])  # error: "BatchJob"


async def call_the_function_with_context(ctx: awa.Context) -> None:
    assert_type(resize_ctx(ctx, "a.png"), list[str])
    assert_type(await send_ctx(ctx, to="ann"), bool)
    assert_type(resize_ctx_options(ctx, path="a.png"), tuple[int, str])
    resize_ctx("a.png")  # error: argument
    await send_ctx(to="ann")  # error: argument


def wrong_batch_handler(job: int) -> None: ...


def use_options() -> None:
    app.job(queue="email", run_at=datetime.now(UTC), metadata={"a": 1}, concurrency_key="{to}", ordered=True)
    app.job(queu="email")  # error: overload
    app.job(queue=1)  # error: __call__
    app.job(timeout=[])  # error: __call__
    app.job(batch="many")  # error: __call__
    app.job(linger="1s")  # error: overload
    app.job(batch=10)(wrong_batch_handler)  # error: list[BatchJob]
    send.options(queu="email")  # error: "queu"
    send.options(priority="high")  # error: "int | None"
    send.options(connection="postgresql://")  # error: "connection"
    app.new("send", {"to": "ann"}, queu="email")  # error: "queu"
    app.new("send", {"to": "ann"}, tags=1)  # error: "tags"
    app.new("send", {"to": "ann"}, **COMMON)
    wrong: awa.JobOptions = {"queu": "email"}  # error: "queu"
    print(wrong)
    awa.Unique(by=1)  # error: "by"


async def use_app() -> None:
    assert_type(await app.enqueue("send", {"to": "ann"}, queue="email", delay="10m"), awa.Job)
    assert_type(await app.enqueue_many([send.new(to="ann"), app.new("send")]), Sequence[awa.Job])
    await app.enqueue("send", {"to": "ann"}, queu="email")  # error: "queu"
    await app.enqueue("send", {"to": "ann"}, delay=[])  # error: "delay"
    await app.enqueue_many([send])  # error: "NewJob"
    await app.enqueue_many(["send"])  # error: "NewJob"
    job = await send_ctx.enqueue(to="ann")
    assert_type(await app.get(job), awa.Job[bool])
    assert_type(await app.get(job.id), awa.Job)
    assert_type(await app.result(job, timeout="30s"), bool)
    assert_type(await app.result(job.id), Any)
    assert_type(await app.result(await send_ctx_options.enqueue(to="ann")), None)
    assert_type(await app.result(await send.options(queue="email").enqueue(to="ann")), int)
    assert_type(await app.cancel(job), bool)
    assert_type(await app.cancel(job.id), bool)
    assert_type(await app.retry(job), bool)
    assert_type(await app.retry(job.id), bool)
    assert_type(await app.history(job), list[awa.Event])
    text: str = await app.result(job)  # error: bool
    print(text)
    await app.get("1")  # error: "get"
    await app.result("1")  # error: "result"
    await app.cancel("1")  # error: "cancel"
    await app.retry(send)  # error: JobDefinition
    await app.work(queues={"email": "ten"})  # error: "int"
    app.cron("@daily")(len)  # error: Sized


# Durable jobs.


async def charge(order_id: int, *, currency: str = "EUR") -> Decimal:
    return Decimal(order_id)


def price(order_id: int) -> dict[str, int]:
    return {"order": order_id}


async def book(connection: Connection, account: str, amount: int) -> str:
    await connection.execute("SELECT $1, $2", account, amount)
    return account


def book_in_thread(connection: Connection, account: str) -> str:
    return account


def later(order_id: int) -> Awaitable[bool]:
    raise NotImplementedError


@app.job
async def order(ctx: awa.Context, order_id: int) -> str:
    assert_type(await ctx.step("charge", charge, order_id, currency="NZD"), Decimal)
    assert_type(await ctx.step("charge", charge, order_id).retry(5, base="1s").timeout(30).key(order_id), Decimal)
    assert_type(await ctx.step("price", price, order_id=order_id), dict[str, int])
    assert_type(await ctx.step("later", later, order_id), bool)
    assert_type(await ctx.step("lambda", lambda: charge(order_id)), Decimal)
    assert_type(await ctx.side_effect("now", datetime.now), datetime)
    assert_type(await ctx.side_effect("charge", lambda: charge(1)), Decimal)
    assert_type(await ctx.transact("book", book, "sales", amount=5), str)
    assert_type(await ctx.wait_signal("approved", int, timeout="7d"), Signal[int] | None)
    assert_type(await ctx.wait_signal("approved"), Signal[Any] | None)
    assert_type(await ctx.sleep("30d"), None)
    assert_type(await asyncio.gather(ctx.step("a", price, 1), ctx.step("b", later, 2)), tuple[dict[str, int], bool])
    assert_type(ctx.idempotency_key("charge"), str)
    await ctx.step("charge", charge, "1")  # error: overload
    await ctx.step("charge", charge)  # error: overload
    await ctx.step("charge", charge, order_id, currenc="NZD")  # error: "step"
    await ctx.step("charge", "charge", order_id)  # error: overload
    await ctx.step("charge", charge(order_id))  # error: overload
    await ctx.step(charge, order_id)  # error: overload
    await ctx.step("price", price, 1).retry("5")  # error: "int"
    await ctx.step("price", price, 1).timeout([])  # error: list
    await ctx.side_effect("charge", charge)  # error: side_effect
    await ctx.transact("book", book, "sales", "5")  # error: "int"
    await ctx.transact("book", charge, 5)  # error: "transact"
    await ctx.transact("book", book_in_thread, "sales")  # error: "transact"
    await ctx.wait_signal("approved", timeout=[])  # error: "wait_signal"
    await ctx.sleep([])  # error: "sleep"
    amount: str = await ctx.step("price", price, 1)  # error: "str"
    return amount


@app.job
def order_in_thread(ctx: awa.Context, order_id: int) -> int:
    assert_type(ctx.step("charge", charge, order_id).retry(2).result(), Decimal)
    assert_type(ctx.step("price", price, order_id).result(), dict[str, int])
    return ctx.step("price", price, order_id).result()  # error: "int"


def names_without_parameters(job: awa.Job, definition: awa.JobDefinition) -> None:
    print(job.result["any"], definition.kind)
