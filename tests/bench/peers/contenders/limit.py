"""The limit: plain SQL on awa's own tables, without handlers.

Two connections work concurrently: one claims (asynchronous commit), the other completes the claimed jobs. A worker does
the same and calls handlers, so it can only be slower. Enqueues are plain INSERT … RETURNING and COPY.
"""

import asyncio
import json
import os
import sys
import time
import uuid
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import uvloop

from awa_py.db import migrations
from awa_py.db.database import STABLE_PLAN_SETTINGS, Database
from awa_py.db.schema import Schema
from tests.bench.peers.kit.database import connected, pinned_snapshot, settle, wal_position
from tests.bench.peers.kit.statistics import thirds

BATCH_SIZE = 500
MAX_QUEUED_BATCHES = 4
CURSOR_SLACK = 2000

# Without the condition on the key, no index has the order: each claim would read and sort the whole table.
CLAIM = """
    WITH gone AS (
        DELETE FROM awa.ready WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM awa.ready
            WHERE queue = 'default' AND priority = 2 AND pos > $1 AND concurrency_key IS NULL
            ORDER BY pos LIMIT $2 FOR UPDATE SKIP LOCKED))
        RETURNING *
    ),
    claimed AS (
        INSERT INTO awa.running ({carried}, lease, attempt, worker_id)
        SELECT {carried}, lease + 1, attempt + 1, $3 FROM gone
    )
    SELECT id, lease + 1, kind, args::text, pos FROM gone
"""
COMPLETE = """
    WITH ended AS (
        DELETE FROM awa.running r USING unnest($1::bigint[], $2::int[]) AS done(id, lease)
        WHERE r.id = done.id AND r.lease = done.lease RETURNING r.*
    )
    INSERT INTO awa.completed ({carried}, lease, attempt, worker_id, attempted_at)
    SELECT {carried}, lease, attempt, worker_id, attempted_at FROM ended
"""
INSERT = "INSERT INTO awa.ready (kind, args) VALUES ('noop', $1::text::jsonb) RETURNING id"
# The columns that ready, running and completed share, in any version of the schema.
CARRIED = """
    SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute a
    WHERE attrelid = 'awa.ready'::regclass AND attnum > 0 AND NOT attisdropped
      AND attname NOT IN ('lease', 'attempt')
      AND 2 = (SELECT count(*) FROM pg_attribute b WHERE b.attname = a.attname
               AND b.attrelid IN ('awa.running'::regclass, 'awa.completed'::regclass))
"""


async def drain(url: str, *, jobs: int, pinned: bool = False) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(connected(url))
        await _copy(admin, _records(jobs))
        await settle(admin, vacuum=True)
        if pinned:
            await stack.enter_async_context(pinned_snapshot(url))
        carried = await admin.fetchval(CARRIED)
        claimer = await asyncpg.connect(url, server_settings={**STABLE_PLAN_SETTINGS, "synchronous_commit": "off"})
        completer = await asyncpg.connect(url, server_settings=STABLE_PLAN_SETTINGS)
        before = await wal_position(admin)
        claims_ns: list[int] = []
        claimed: asyncio.Queue[list[Any]] = asyncio.Queue(MAX_QUEUED_BATCHES)

        async def claim() -> None:
            statement = await claimer.prepare(CLAIM.format(carried=carried))
            worker, above, count = uuid.uuid4(), 0, 0
            while count < jobs:
                rows = await statement.fetch(above, BATCH_SIZE, worker)
                claims_ns.extend([time.monotonic_ns()] * len(rows))
                above = max(0, max((row[4] for row in rows), default=0) - CURSOR_SLACK)
                count += len(rows)
                await claimed.put(rows)

        async def complete() -> None:
            statement = await completer.prepare(COMPLETE.format(carried=carried))
            done = 0
            while done < jobs:
                rows = await claimed.get()
                while not claimed.empty():
                    rows = rows + claimed.get_nowait()
                await statement.fetch([row[0] for row in rows], [row[1] for row in rows])
                done += len(rows)

        started = time.perf_counter()
        await asyncio.gather(claim(), complete())
        seconds = time.perf_counter() - started
        written = await wal_position(admin) - before
        await claimer.close()
        await completer.close()
        if await admin.fetchval("SELECT count(*) FROM awa.completed") != jobs:
            raise RuntimeError("the limit lost jobs")
    rates = {"jobs_per_s": jobs / seconds, "thirds": thirds(claims_ns)}
    return {"jobs": jobs, "seconds": seconds, **rates, "wal_bytes_per_job": written / jobs}


async def enqueue(url: str, *, mode: str, jobs: int, per_call: int = 10_000, producers: int = 32) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        connections = [
            await stack.enter_async_context(connected(url)) for _ in range(producers if mode == "producers" else 1)
        ]
        for connection in connections:
            for _ in range(10):
                await connection.fetchval(INSERT, '{"n": 0}')
        calls = [_records(min(per_call, jobs - first)) for first in range(0, jobs, per_call)] if mode == "bulk" else []
        await settle(connections[0], vacuum=False)

        async def insert(connection: Any, share: int) -> None:
            statement = await connection.prepare(INSERT)
            for number in range(share):
                await statement.fetchval(f'{{"n": {number}}}')

        started = time.perf_counter()
        for records in calls:
            await _copy(connections[0], records)
        if mode != "bulk":
            await asyncio.gather(*(insert(connection, jobs // len(connections)) for connection in connections))
        seconds = time.perf_counter() - started
    return {"jobs": jobs, "seconds": seconds, "jobs_per_s": jobs / seconds}


def _records(jobs: int) -> list[tuple[str, str]]:
    return [("noop", f'{{"n": {number}}}') for number in range(jobs)]


async def _copy(connection: Any, records: list[tuple[str, str]]) -> None:
    await connection.copy_records_to_table("ready", schema_name="awa", columns=["kind", "args"], records=records)


async def main() -> None:
    url, workload, params = os.environ["BENCH_DATABASE_URL"], sys.argv[1], json.loads(sys.argv[2])
    await migrations.migrate(Database(url, Schema()))
    async with connected(url) as connection:
        await connection.fetchval("SELECT awa.create_day_partitions('completed', 1)")
    result = await (drain(url, **params) if workload == "drain" else enqueue(url, **params))
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
