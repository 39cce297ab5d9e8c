-- Counts what ended in some minutes, by minute, queue and kind. However often it does so, the result is the same; and what
-- has been deleted meanwhile is not taken back: a bucket is replaced only by one that counts more.
-- $1 the first minute · $2 the one after the last
-- Answers how many buckets it wrote.
WITH ended AS (
    SELECT finalized_at, queue, kind, 'completed' AS state, attempt, run_at, attempted_at
    FROM awa.completed WHERE finalized_at >= $1 AND finalized_at < $2
    UNION ALL
    SELECT finalized_at, queue, kind, state, attempt, run_at, attempted_at
    FROM awa.dead WHERE finalized_at >= $1 AND finalized_at < $2
),
-- The many rows are gone through once: what follows works with what is left of them.
alike AS MATERIALIZED (
    SELECT date_trunc('minute', finalized_at) AS at, queue, kind, state,
           awa.cell(attempted_at - run_at) AS wait, awa.cell(finalized_at - attempted_at) AS run,
           count(*) AS jobs, sum(greatest(attempt - 1, 0)) AS retried
    FROM ended GROUP BY 1, 2, 3, 4, 5, 6
),
waits AS (
    SELECT at, queue, kind, jsonb_object_agg(wait, jobs) AS cells
    FROM (SELECT at, queue, kind, wait, sum(jobs) AS jobs FROM alike WHERE wait IS NOT NULL GROUP BY 1, 2, 3, 4) AS w
    GROUP BY 1, 2, 3
),
runs AS (
    SELECT at, queue, kind, jsonb_object_agg(run, jobs) AS cells
    FROM (SELECT at, queue, kind, run, sum(jobs) AS jobs FROM alike WHERE run IS NOT NULL GROUP BY 1, 2, 3, 4) AS r
    GROUP BY 1, 2, 3
),
counts AS (
    SELECT at, queue, kind, coalesce(sum(jobs) FILTER (WHERE state = 'completed'), 0) AS completed,
           coalesce(sum(jobs) FILTER (WHERE state = 'failed'), 0) AS failed,
           coalesce(sum(jobs) FILTER (WHERE state = 'cancelled'), 0) AS cancelled, sum(retried) AS retried
    FROM alike GROUP BY 1, 2, 3
),
written AS (
    INSERT INTO awa.metric_buckets AS kept (at, queue, kind, completed, failed, cancelled, retried, waits, runs)
    SELECT at, queue, kind, completed, failed, cancelled, retried, coalesce(waits.cells, '{}'), coalesce(runs.cells, '{}')
    FROM counts LEFT JOIN waits USING (at, queue, kind) LEFT JOIN runs USING (at, queue, kind)
    ON CONFLICT (at, queue, kind) DO UPDATE
    SET completed = excluded.completed, failed = excluded.failed, cancelled = excluded.cancelled,
        retried = excluded.retried, waits = excluded.waits, runs = excluded.runs
    WHERE kept.completed + kept.failed + kept.cancelled < excluded.completed + excluded.failed + excluded.cancelled
    RETURNING 1
)
SELECT count(*) FROM written
