-- Counts what ended in some minutes, by minute, queue and kind. However often it does so, the result is the same; and what
-- has been deleted meanwhile, or retried, is not taken back: no count gets smaller, and how long they took is told by the
-- look that saw the most.
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
    SELECT date_bin('1 minute', finalized_at, '2000-01-01 00:00+00') AS at, queue, kind, state,
           awa.latency_bucket(attempted_at - run_at) AS wait, awa.latency_bucket(finalized_at - attempted_at) AS run,
           count(*) AS jobs, sum(attempt - 1) FILTER (WHERE attempt > 1) AS retried
    FROM ended GROUP BY 1, 2, 3, 4, 5, 6
),
-- As a whole (3), by the cells of their waits (1), and by those of their runs (2).
told AS (
    SELECT at, queue, kind, grouping(wait, run) AS how, coalesce(wait, run) AS cell, sum(jobs) AS jobs,
           coalesce(sum(jobs) FILTER (WHERE state = 'completed'), 0) AS completed,
           coalesce(sum(jobs) FILTER (WHERE state = 'failed'), 0) AS failed,
           coalesce(sum(jobs) FILTER (WHERE state = 'cancelled'), 0) AS cancelled, coalesce(sum(retried), 0) AS retried
    FROM alike
    GROUP BY GROUPING SETS ((at, queue, kind), (at, queue, kind, wait), (at, queue, kind, run))
),
ranked AS (
    SELECT *, sum(jobs) OVER (PARTITION BY at, queue, kind, how ORDER BY cell) AS upto,
           sum(jobs) OVER (PARTITION BY at, queue, kind, how) AS total
    FROM told WHERE how = 3 OR cell IS NOT NULL
),
written AS (
    INSERT INTO awa.metric_buckets AS kept (at, queue, kind, completed, failed, cancelled, retried, wait_p50, wait_p95,
                                            wait_p99, run_p50, run_p95, run_p99, waits, runs)
    SELECT at, queue, kind, max(completed) FILTER (WHERE how = 3), max(failed) FILTER (WHERE how = 3),
           max(cancelled) FILTER (WHERE how = 3), max(retried) FILTER (WHERE how = 3),
           awa.latency_bucket_seconds(min(cell) FILTER (WHERE how = 1 AND upto >= 0.50 * total)),
           awa.latency_bucket_seconds(min(cell) FILTER (WHERE how = 1 AND upto >= 0.95 * total)),
           awa.latency_bucket_seconds(min(cell) FILTER (WHERE how = 1 AND upto >= 0.99 * total)),
           awa.latency_bucket_seconds(min(cell) FILTER (WHERE how = 2 AND upto >= 0.50 * total)),
           awa.latency_bucket_seconds(min(cell) FILTER (WHERE how = 2 AND upto >= 0.95 * total)),
           awa.latency_bucket_seconds(min(cell) FILTER (WHERE how = 2 AND upto >= 0.99 * total)),
           array_agg(ARRAY[cell, jobs::int] ORDER BY cell) FILTER (WHERE how = 1),
           array_agg(ARRAY[cell, jobs::int] ORDER BY cell) FILTER (WHERE how = 2)
    FROM ranked GROUP BY at, queue, kind
    ON CONFLICT (at, queue, kind) DO UPDATE
    SET completed = greatest(kept.completed, excluded.completed), failed = greatest(kept.failed, excluded.failed),
        cancelled = greatest(kept.cancelled, excluded.cancelled), retried = greatest(kept.retried, excluded.retried),
        (wait_p50, wait_p95, wait_p99, run_p50, run_p95, run_p99, waits, runs) = (
            SELECT best.wait_p50, best.wait_p95, best.wait_p99, best.run_p50, best.run_p95, best.run_p99,
                   best.waits, best.runs
            FROM (SELECT kept.* UNION ALL SELECT excluded.*) AS best
            ORDER BY best.completed + best.failed + best.cancelled DESC LIMIT 1)
    WHERE kept.completed < excluded.completed OR kept.failed < excluded.failed OR kept.cancelled < excluded.cancelled
    RETURNING 1
)
SELECT count(*) FROM written
