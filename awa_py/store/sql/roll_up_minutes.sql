-- Roll up what ended in some minutes, by minute, queue and kind. Idempotent: rolling up a minute again never lowers a
-- count when jobs were deleted or retried meanwhile, and keeps the durations of the roll-up that saw the most jobs.
-- $1 the first minute · $2 the minute after the last
-- Returns the number of buckets written.
WITH ended AS (
    SELECT finalized_at, queue, kind, 'completed' AS state, attempt, run_at, attempted_at
    FROM awa.completed WHERE finalized_at >= $1 AND finalized_at < $2
    UNION ALL
    SELECT finalized_at, queue, kind, state, attempt, run_at, attempted_at
    FROM awa.dead WHERE finalized_at >= $1 AND finalized_at < $2
),
-- One pass over the jobs. All that follows reads these groups.
groups AS MATERIALIZED (
    SELECT date_bin('1 minute', finalized_at, '2000-01-01 00:00+00') AS at, queue, kind, state,
           awa.latency_bucket(awa.readable_time(attempted_at) - awa.readable_time(run_at)) AS wait_bucket,
           awa.latency_bucket(finalized_at - awa.readable_time(attempted_at)) AS run_bucket,
           count(*) AS jobs, sum(attempt - 1) FILTER (WHERE attempt > 1) AS retried
    FROM ended GROUP BY 1, 2, 3, 4, 5, 6
),
-- grouping() is 3 for the totals, 1 for the counts by wait bucket, 2 for those by run bucket.
counted AS (
    SELECT at, queue, kind, grouping(wait_bucket, run_bucket) AS part,
           coalesce(wait_bucket, run_bucket) AS bucket, sum(jobs) AS jobs,
           coalesce(sum(jobs) FILTER (WHERE state = 'completed'), 0) AS completed,
           coalesce(sum(jobs) FILTER (WHERE state = 'failed'), 0) AS failed,
           coalesce(sum(jobs) FILTER (WHERE state = 'cancelled'), 0) AS cancelled, coalesce(sum(retried), 0) AS retried
    FROM groups
    GROUP BY GROUPING SETS ((at, queue, kind), (at, queue, kind, wait_bucket), (at, queue, kind, run_bucket))
),
ranked AS (
    SELECT *, sum(jobs) OVER (PARTITION BY at, queue, kind, part ORDER BY bucket) AS running_total,
           sum(jobs) OVER (PARTITION BY at, queue, kind, part) AS total
    FROM counted WHERE part = 3 OR bucket IS NOT NULL
),
written AS (
    INSERT INTO awa.metric_buckets AS old (at, queue, kind, completed, failed, cancelled, retried, wait_p50, wait_p95,
                                           wait_p99, run_p50, run_p95, run_p99, waits, runs)
    SELECT at, queue, kind, max(completed) FILTER (WHERE part = 3), max(failed) FILTER (WHERE part = 3),
           max(cancelled) FILTER (WHERE part = 3), max(retried) FILTER (WHERE part = 3),
           awa.latency_bucket_seconds(min(bucket) FILTER (WHERE part = 1 AND running_total >= 0.50 * total)),
           awa.latency_bucket_seconds(min(bucket) FILTER (WHERE part = 1 AND running_total >= 0.95 * total)),
           awa.latency_bucket_seconds(min(bucket) FILTER (WHERE part = 1 AND running_total >= 0.99 * total)),
           awa.latency_bucket_seconds(min(bucket) FILTER (WHERE part = 2 AND running_total >= 0.50 * total)),
           awa.latency_bucket_seconds(min(bucket) FILTER (WHERE part = 2 AND running_total >= 0.95 * total)),
           awa.latency_bucket_seconds(min(bucket) FILTER (WHERE part = 2 AND running_total >= 0.99 * total)),
           array_agg(ARRAY[bucket, jobs::int] ORDER BY bucket) FILTER (WHERE part = 1),
           array_agg(ARRAY[bucket, jobs::int] ORDER BY bucket) FILTER (WHERE part = 2)
    FROM ranked GROUP BY at, queue, kind
    ON CONFLICT (at, queue, kind) DO UPDATE
    SET completed = greatest(old.completed, excluded.completed), failed = greatest(old.failed, excluded.failed),
        cancelled = greatest(old.cancelled, excluded.cancelled), retried = greatest(old.retried, excluded.retried),
        (wait_p50, wait_p95, wait_p99, run_p50, run_p95, run_p99, waits, runs) = (
            SELECT best.wait_p50, best.wait_p95, best.wait_p99, best.run_p50, best.run_p95, best.run_p99,
                   best.waits, best.runs
            FROM (SELECT old.* UNION ALL SELECT excluded.*) AS best
            ORDER BY best.completed + best.failed + best.cancelled DESC LIMIT 1)
    WHERE old.completed < excluded.completed OR old.failed < excluded.failed OR old.cancelled < excluded.cancelled
    RETURNING 1
)
SELECT count(*) FROM written
