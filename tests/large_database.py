"""A database with large tables, for the tests of plans and costs. All pytest processes share it."""

import asyncio

import asyncpg

ROWS = 250_000  # in each of four tables: their indexes have three levels, as with a million rows
UNLOGGED = """
    DO $$ DECLARE part regclass; BEGIN
        FOR part IN SELECT oid FROM pg_class WHERE relnamespace = 'awa'::regnamespace AND relkind = 'r'
                    AND relname ~ '^(ready|scheduled|running|completed_.*)$' LOOP
            EXECUTE format('ALTER TABLE %s SET UNLOGGED', part);
        END LOOP;
    END $$
"""
FILL = (
    f"""
    INSERT INTO awa.ready (kind, queue, priority, expires_at)
    SELECT 'work', 'q' || n % CASE WHEN n % 2 = 0 THEN 5 ELSE 10000 END, 1 + n / 2 % 4,
           CASE WHEN n % 1000 = 0 THEN now() + interval '1 day' END
    FROM generate_series(1, {ROWS}) AS n
    """,
    f"""
    INSERT INTO awa.scheduled (state, kind, queue, run_at)
    SELECT 'scheduled', 'work', 'q' || n % 5, now() + n * interval '1 second' - interval '100 seconds'
    FROM generate_series(1, {ROWS}) AS n
    """,
    """
    INSERT INTO awa.scheduled (state, kind, queue, run_at, waits)
    SELECT 'waiting', 'work', 'q1', '8999-01-01', '{"signals": ["go"]}' FROM generate_series(1, 100000)
    """,
    """
    INSERT INTO awa.checkpoints (job_id, name, number, type, lease, result)
    SELECT n, 'a', 1, 'step', 1, '1' FROM generate_series(10000001, 10100000) AS n
    """,
    f"""
    INSERT INTO awa.running (kind, queue, worker_id, attempt, lease, attempted_at, heartbeat_at, deadline_at)
    SELECT 'work', 'q' || n % 5, '00000000-0000-4000-8000-000000000001', 1, 1,
           now() - (n % 1000) * interval '100 ms', now(), CASE WHEN n % 10 = 0 THEN now() + interval '1 hour' END
    FROM generate_series(1, {ROWS}) AS n
    """,
    f"""
    INSERT INTO awa.completed (kind, queue, worker_id, attempt, lease, attempted_at, finalized_at)
    SELECT 'work', 'q' || n % 5, '00000000-0000-4000-8000-000000000001', 1, 1, now(), now()
    FROM generate_series(1, {ROWS}) AS n
    """,
    "INSERT INTO awa.queues (name) SELECT 'q' || n FROM generate_series(0, 9999) AS n",
    """
    INSERT INTO awa.cron (name, expression, kind, next_at)
    SELECT 'schedule ' || n, '@hourly', 'work', now() + n * interval '1 minute' FROM generate_series(1, 1000) AS n
    """,
    """
    WITH workers AS (
        INSERT INTO awa.workers (id, hostname, pid, version, queues, kinds, concurrency)
        SELECT gen_random_uuid(), 'h' || n, n, '1', '{q1,q2}', '{work}', 100 FROM generate_series(1, 500) AS n
        RETURNING id, queues
    )
    INSERT INTO awa.listening (queue, worker_id) SELECT unnest(queues), id FROM workers
    """,
)


async def fill(url: str) -> None:
    """Fill the tables of a migrated database."""
    await _execute(url, UNLOGGED)
    await asyncio.gather(*(_execute(url, command) for command in FILL))
    await _execute(url, "ANALYZE")


async def _execute(url: str, command: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(command)
    finally:
        await connection.close()
