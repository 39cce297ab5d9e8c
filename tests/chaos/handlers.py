"""The app of the seeded fault test. Its handlers append every start and end to the file AWA_CHAOS_LOG.

A start records what the handler knows at that moment: its lease, when the job was claimed, and how old the lease is by
the worker's own clock. The result of an attempt is its nonce, so that the checker knows which attempt counted.
"""

import asyncio
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast
from uuid import uuid4

import awa_py as awa
from awa_py.db.errors import CONNECTION_LOST
from awa_py.observability.logs import current_call
from awa_py.worker.batches import Batch
from awa_py.worker.claimed_job import ClaimedJob
from awa_py.worker.in_flight import Call

KEY_LIMIT = 2
DURABLE_QUEUE = "durable"  # its claims are durable: a crash of PostgreSQL excuses nothing
ROW_TIMEOUT_S = 2.0
LARGE_ARGUMENT = 5_000  # characters

app = awa.App()
_log = os.open(os.environ.get("AWA_CHAOS_LOG", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def write(*entries: dict[str, Any]) -> None:
    """Append entries in one write, so that those of several processes do not mix."""
    os.write(_log, "".join(f"{json.dumps(entry)}\n" for entry in entries).encode())


def claimed_jobs() -> Sequence[ClaimedJob]:
    """Return the jobs of the current call, as the worker knows them."""
    call = cast(Call, current_call.get())
    return call.jobs if isinstance(call, Batch) else [call]


@contextmanager
def recorded(jobs: Sequence[ClaimedJob] | None = None, key: str | None = None) -> Iterator[dict[int, str]]:
    """Record the start of the current call's jobs, and how it ended. Yield their nonces by job id."""
    jobs = claimed_jobs() if jobs is None else jobs
    now, clock = time.time(), time.monotonic()
    nonces = {job.id: uuid4().hex[:12] for job in jobs}
    write(
        *(
            {
                "event": "start",
                "at": now,
                "nonce": nonces[job.id],
                "job": job.id,
                "kind": job.kind,
                "attempt": job.attempt,
                "lease": job.lease,
                "n": json.loads(job.args).get("n"),
                "key": key,
                "pid": os.getpid(),
                "claim_age_s": clock - job.waiting_since,
                "lease_age_s": clock - job.renewed_at,
            }
            for job in jobs
        )
    )
    how = "ok"
    try:
        yield nonces
    except asyncio.CancelledError:
        how = "stopped"
        raise
    except awa.Snooze:
        how = "snoozed"
        raise
    except Exception:
        how = "error"
        raise
    finally:
        now = time.time()
        write(*({"event": "end", "at": now, "nonce": nonce, "how": how} for nonce in nonces.values()))


def nonce_of(nonces: dict[int, str]) -> dict[str, str]:
    """Return the result of a job: the nonce of its attempt."""
    (nonce,) = nonces.values()
    return {"nonce": nonce}


@app.job
async def quick(n: int) -> dict[str, str]:
    with recorded() as nonces:
        return nonce_of(nonces)


@app.job
async def nap(n: int, seconds: float) -> dict[str, str]:
    with recorded() as nonces:
        await asyncio.sleep(seconds)
        return nonce_of(nonces)


@app.job
def block(n: int, seconds: float) -> dict[str, str]:
    """Block a thread, and ignore all requests to stop."""
    with recorded() as nonces:
        time.sleep(seconds)
        return nonce_of(nonces)


@app.job(max_attempts=12)
async def fail_first(ctx: awa.Context, n: int, failures: int) -> dict[str, str]:
    """Fail in the first attempts."""
    with recorded() as nonces:
        if ctx.attempt <= failures:
            raise ValueError(f"attempt {ctx.attempt} fails")
        return nonce_of(nonces)


@app.job(max_attempts=12)
async def large(ctx: awa.Context, n: int, text: str, failures: int) -> dict[str, str]:
    """Fail in the first attempts. The arguments are in a payload."""
    with recorded() as nonces:
        if len(text) != LARGE_ARGUMENT:
            raise awa.Fail(f"got {len(text)} characters")
        if ctx.attempt <= failures:
            raise ValueError(f"attempt {ctx.attempt} fails")
        return nonce_of(nonces)


@app.job(max_attempts=3)
async def fail_always(n: int) -> None:
    with recorded():
        await asyncio.sleep(0.05)
        raise ValueError("always")


@app.job(max_attempts=1)
async def once(n: int, seconds: float) -> dict[str, str]:
    """Run at most once: whatever happens to the worker, there is no second attempt."""
    with recorded() as nonces:
        await asyncio.sleep(seconds)
        return nonce_of(nonces)


@app.job(queue=DURABLE_QUEUE, max_attempts=2)
async def twice(n: int, seconds: float) -> dict[str, str]:
    """Run at most twice, also if PostgreSQL crashes."""
    with recorded() as nonces:
        await asyncio.sleep(seconds)
        return nonce_of(nonces)


@app.job
async def snooze_first(ctx: awa.Context, n: int) -> dict[str, str]:
    with recorded() as nonces:
        if not ctx.job.errors and ctx.job.lease == 1:
            raise awa.Snooze("1s")
        return nonce_of(nonces)


@app.job(queue="keyed", concurrency_key="key:{key}", concurrency_limit=KEY_LIMIT)
async def keyed(n: int, key: str, seconds: float) -> dict[str, str]:
    with recorded(key=key) as nonces:
        await asyncio.sleep(seconds)
        return nonce_of(nonces)


@app.job(queue=DURABLE_QUEUE, concurrency_key="ordered:{key}", ordered=True)
async def ordered(n: int, key: str, seconds: float) -> dict[str, str]:
    with recorded(key=key) as nonces:
        await asyncio.sleep(seconds)
        return nonce_of(nonces)


@app.job(unique=awa.Unique(by=["name"]))
async def only_one(n: int, name: str) -> dict[str, str]:
    with recorded(key=name) as nonces:
        await asyncio.sleep(0.1)
        return nonce_of(nonces)


@app.job(batch=10, linger="0.2s")
async def together(jobs: list[awa.BatchJob]) -> None:
    given = {job.id for job in jobs}
    with recorded([job for job in claimed_jobs() if job.id in given]) as nonces:
        await asyncio.sleep(0.05)
    for job in jobs:
        job.complete({"nonce": nonces[job.id]})


@app.job
async def look(ctx: awa.Context, n: int) -> dict[str, str]:
    """Read its own row at the start: it must be there, with the lease of this attempt."""
    with recorded() as nonces:
        began = time.monotonic()
        try:
            async with asyncio.timeout(ROW_TIMEOUT_S), app.pool.acquire() as connection:
                row = await connection.fetchrow("SELECT lease FROM awa.running WHERE id = $1", ctx.job.id)
        except CONNECTION_LOST:
            return nonce_of(nonces)  # no answer is no evidence
        found = None if row is None else row["lease"]
        took_s = time.monotonic() - began
        (nonce,) = nonces.values()
        write({"event": "look", "at": time.time(), "nonce": nonce, "lease": found, "took_s": took_s})
        return nonce_of(nonces)


@app.cron("* * * * * *", name="tick", misfire="all")
@app.job
async def tick() -> dict[str, str]:
    with recorded() as nonces:
        return nonce_of(nonces)
