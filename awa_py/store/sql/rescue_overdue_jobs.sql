-- running → retryable or failed, for attempts that overran their deadline. Bounded, earliest deadline first.
-- $1 at most this many jobs
WITH overdue AS MATERIALIZED (
    SELECT id, lease
    FROM awa.running
    WHERE deadline_at <= now()
    ORDER BY deadline_at
    LIMIT $1
    FOR UPDATE SKIP LOCKED
)
SELECT rescued.*, pg_notify('awa', 'lost:' || rescued.id || ':' || rescued.lease)
FROM (SELECT array_agg(id) AS ids, array_agg(lease) AS leases, count(*)::int AS n FROM overdue) AS o
CROSS JOIN LATERAL awa.fail_attempts(
    o.ids, o.leases, array_fill('hard deadline exceeded'::text, ARRAY[o.n]),
    array_fill(NULL::interval, ARRAY[o.n]), false) AS rescued
