-- The roll-ups by minute, queue and kind, oldest first.
-- $1 the first minute · $2 queue, $3 kind; NULL: any
SELECT at, queue, kind, completed, failed, cancelled, retried, wait_p50, wait_p95, wait_p99, run_p50, run_p95, run_p99
FROM awa.metric_buckets
WHERE at >= $1::timestamptz AND ($2::text IS NULL OR queue = $2) AND ($3::text IS NULL OR kind = $3)
ORDER BY at, queue, kind
